"""The promises, and the command that proves each: the rows of `docs/explanation/reliability.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _passed(output: str) -> str:
    """Return pytest's count."""
    counts = re.findall(r"(\d+) (passed|failed|skipped)", output)
    told = ", ".join(f"{count} {what}" for count, what in counts)
    # What was skipped proves nothing.
    return told if any(int(count) for count, what in counts if what == "passed") else ""


def _passed_at_last(output: str) -> str:
    """Return the counts of the last line."""
    return _passed("".join(output.splitlines()[-1:]))


def _simulated(output: str) -> str:
    found = re.findall(
        r"(\d+) seeds, (\d+) failed; (\d+) messages acknowledged; (\d+ of \d+ situations met)",
        output,
    )
    if not found:
        return ""
    seeds, failed, messages, met = found[-1]
    return f"{int(seeds):,} seeds, {failed} failed; {int(messages):,} messages; {met}"


def _of_json(tell: Callable[[Any], str]) -> Callable[[str], str]:
    """Let a function tell of the last JSON object that a command printed; "" without one."""

    def tell_last(output: str) -> str:
        lines = [line for line in output.splitlines() if line.startswith("{")]
        return tell(json.loads(lines[-1])) if lines else ""

    return tell_last


@_of_json
def _killed(figures: Any) -> str:
    acknowledged, broken = sum(figures["acknowledged"].values()), sum(figures["broken"].values())
    start_s, processor_s = figures["mean_starts_s"], figures["mean_starts_processor_s"]
    failures = "".join(f"; {failure}" for failure in figures["failures"])
    return (
        f"{figures['kills']:,} kills, {acknowledged:,} confirmed, {broken} broken{failures}; "
        f"start after a kill, on 1 GB, {start_s} s, {processor_s} s of it processor time (means)"
    )


@_of_json
def _members_killed(figures: Any) -> str:
    broken = sum(figures["broken"].values())
    failures = "".join(f"; {failure}" for failure in figures["failures"])
    return (
        f"{figures['kills']:,} kills, {figures['busy']:,} of members that had consumed, "
        f"{figures['sent']:,} sent, {broken} broken{failures}; "
        f"{figures['again']} came again, at most {figures['again_max']} after a kill; "
        f"longest pause of a queue {figures['pause_s']} s"
    )


@_of_json
def _cut(figures: Any) -> str:
    cuts, broken = figures.pop("cuts"), figures.pop("broken")
    missing = "".join(f"; nothing of: {kind}" for kind in figures.pop("missing"))
    confirmations = sum(figures.values())
    return f"{cuts:,} cuts, {confirmations:,} confirmations, {broken} brokers broken{missing}"


@_of_json
def _filled(figures: Any) -> str:
    return (
        f"{figures['cycles']:,} times full, {sum(figures['acknowledged'].values()):,} "
        f"acknowledged, {figures['refused']:,} refused, {figures['popped']:,} popped, "
        f"{sum(figures['broken'].values())} broken"
    )


@_of_json
def _flooded(figures: Any) -> str:
    ports = ", ".join(f"{name} {frames:,}" for name, frames in figures["ports"].items())
    return (
        f"{figures['frames']:,} frames read ({ports}), {figures['whole']:,} of them whole; "
        f"{figures['silent']} whole requests without an answer, {figures['unanswered']} of "
        f"{figures['healthy'] + figures['unanswered']:,} healthy requests; "
        f"{figures['growth_mb']} MB more"
    )


@_of_json
def _connected(figures: Any) -> str:
    return (
        f"{figures['connections']:,} connections of each kind, at least {figures['open']:,} open "
        f"at a time, and {figures['pulls']:,} pulls, {figures['pulls_answered']} of them answered; "
        f"a healthy client's send and pull {max(figures['p99_ms'].values())} ms (p99); at most "
        f"{figures['peak_mb']} MB more, {figures['growth_mb']} MB of them not reused"
    )


@_of_json
def _repeated(figures: Any) -> str:
    counts = {"passed": 0, "failed": 0} | figures["counts"]
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return f"{figures['files']} files, {figures['runs']} times: {told}"


@_of_json
def _upgraded(figures: Any) -> str:
    return (
        f"from {figures['from']} and back: {sum(figures['acknowledged'].values()):,} "
        f"confirmed, {figures['consumed']:,} consumed, {sum(figures['broken'].values())} "
        f"broken; {figures['twice_by_older']} twice by members of {figures['from']} after a restart"
    )


@_of_json
def _asked(figures: Any) -> str:
    return (
        f"{figures['requests']:,} requests of {figures['codes']} codes in {figures['ways']} ways "
        f"and {figures['methods']} methods of gRPC in {figures['ways_of_calls']}: "
        f"{figures['served']} served, {figures['hung_up']} hang-ups, {figures['changed']} changes; "
        f"an administrator is served {figures['served_to_administrator']} of the "
        f"{figures['known']} that a server knows"
    )


@_of_json
def _searched(figures: Any) -> str:
    found = sum(figures["found"].values())
    return (
        f"{figures['secrets']} secrets in {figures['texts']:,} texts of "
        f"{len(figures['sources'])} sources, {found} found"
    )


def _fuzzed(output: str) -> str:
    return "".join(re.findall(r"^\d+ targets for \d+ s each, \d+ failed$", output, re.M)[-1:])


def _spark_killed(output: str) -> str:
    """Return how often each of the two queries was killed, and pytest's count."""
    kills = [re.findall(r"run \d+, (\d+) kills", each) for each in output.split("all runs")[:-1]]
    return f"{' and '.join(each[-1] for each in kills if each)} kills; {_passed(output)}"


@dataclass(frozen=True)
class Row:
    """A promise and its proof.

    Args:
        name: how the gate's options call the row.
        promise: what is promised, in English and in Chinese.
        command: the proof, for a shell's reading; `{count}` stands for how often.
        figure: reads the figure from what the command prints; "" if there is none.
        count: how often in a whole run.
        minutes: the longest time; a command that takes longer has failed.
        is_behind: whether it only computes, and no figure of it depends on how fast: it runs behind
            the other rows, with what these leave of the processor.
        others: who else promises it, and proves it in the same way.
    """

    name: str
    promise: tuple[str, str]
    command: str
    figure: Callable[[str], str] = _passed
    count: int = 0
    minutes: int = 60
    is_behind: bool = False
    others: str = ""


ROWS = (
    Row(
        "kills",
        (
            "A broker that is killed under load loses, moves and doubles nothing that it "
            "acknowledged: single messages, batches, delayed, timed, sent back, transactions, "
            "pops, locks, offsets of more than 2 s ago; all but timed and popped messages keep "
            "their order, none comes early, and what was popped and not acknowledged alone comes "
            "again; it starts within 1 s on 1 GB (mean)",
            "负载下被 kill 的 Broker，其已确认的单条、批量、延迟、定时、回退、事务消息、pop、锁"
            "以及 2 秒之前提交的位点不丢失、不移位、不重复；除定时与 pop 的消息外不乱序，"
            "均不提前；只有已 pop 而未确认的消息会再次投递；1 GB 数据平均 1 秒内启动",
        ),
        "python -m gate.kills --cycles {count}",
        _killed,
        count=1_000,
        minutes=120,
        others="etcd, TigerBeetle",
    ),
    Row(
        "members",
        (
            "Members that are killed under load lose nothing; what comes again they had consumed "
            "within the last second and not committed, groups that consume in order do so, and "
            "queues have owners again within 30 s",
            "负载下成员被 kill 不丢消息；重复的只是其最后一秒内消费且尚未提交的消息，"
            "顺序消费的组仍保持顺序，队列在 30 秒内重新有主",
        ),
        "python -m gate.members --kills {count}",
        _members_killed,
        count=200,
        minutes=60,
    ),
    Row(
        "simulation",
        (
            "No schedule of faults that was drawn breaks an invariant of members, brokers and name "
            "servers",
            "随机抽取的任何故障序列都不破坏成员、Broker 与 NameServer 的不变式",
        ),
        "python -m gate.simulation --seeds {count}",
        _simulated,
        count=10_000,
        minutes=720,
        is_behind=True,
        others="FoundationDB, TigerBeetle",
    ),
    Row(
        "planted",
        (
            "Planted mistakes are found: in locks, offsets, flushes, recovery, retries, delays, "
            "transactions, pops, plans, routes and access",
            "故意植入的错误都被发现：锁、位点、刷盘、恢复、重试、延迟、事务、pop、计划、路由与权限",
        ),
        "python -m gate.planted",
        minutes=60,
        others="etcd",
    ),
    Row(
        "cuts",
        (
            "Wherever the power goes, what a broker confirmed holds: single messages, batches, "
            "delayed, timed, recalled, sent back, transactions, pops, offsets of more than 2 s "
            "ago, locks, plans, topics, groups, request modes; no message is stored early, nor "
            "twice, but for dead letters of pops and transactions whose end was not answered",
            "无论何时断电，Broker 已确认的都成立：单条、批量、延迟、定时、撤回、回退、事务、pop、"
            "2 秒之前提交的位点、锁、分配计划、Topic、消费者组、请求模式；"
            "消息不提前；除已 pop 消息的死信与结束请求未获应答的事务外，不重复存储",
        ),
        "python -m gate.power --cuts {count}",
        _cut,
        count=10_000,
        minutes=30,
        others="SQLite, TigerBeetle",
    ),
    Row(
        "power",
        (
            "A store loses nothing that was acknowledged by a power cut at any moment. Damage to "
            "any of the log's last bytes is cut off if they were not synced, and else reported or "
            "refused; a damaged config file is replaced by its backup, reported or refused, unless "
            "it has no checksum and can still be understood",
            "任意时刻断电，存储都不丢失已确认的消息。日志末尾任意字节损坏时，未同步的部分被截去，"
            "已同步的会被报告或拒绝启动；损坏的配置文件由备份代替、被报告或拒绝启动，"
            "除非它没有校验和且仍可解析",
        ),
        "python -m pytest tests/store tests/broker -k 'power or torn or cut or damage'",
        minutes=30,
        others="SQLite, TigerBeetle",
    ),
    Row(
        "disk",
        (
            "A broker whose disk is full refuses messages, loses nothing that it acknowledged, and "
            "serves again once there is room",
            "磁盘已满的 Broker 拒绝新消息，不丢失任何已确认的内容，有空间后恢复服务",
        ),
        "python -m gate.disk --cycles {count}",
        _filled,
        count=100,
        minutes=30,
    ),
    Row(
        "frames",
        (
            "No bytes at the ports of a name server or a broker, of gRPC, health, the live page or "
            "the exporter keep a server from serving others, or make it grow by more than 64 MB; "
            "no whole request goes without an answer or the end of its connection",
            "发往 NameServer、Broker、gRPC、健康检查、实时页面与 exporter 端口的任何字节都不妨碍"
            "服务他人，内存增长不超过 64 MB；每个完整的请求都得到应答或连接被关闭",
        ),
        "python -m gate.frames --count {count}",
        _flooded,
        count=1_000_000,
        minutes=60,
    ),
    Row(
        "connections",
        (
            "Connections that are idle, half a frame, a byte now and then, half a TLS handshake or "
            "held pulls keep a healthy client waiting for at most 20 ms (p99)",
            "空闲、只发半帧、偶尔发一字节、TLS 握手一半的连接以及挂起的拉取，"
            "都不会让正常客户端等待超过 20 毫秒（p99）",
        ),
        "python -m gate.connections --count {count}",
        _connected,
        count=10_000,
        minutes=15,
    ),
    Row(
        "decoders",
        (
            "No bytes make a decoder fail in another way than it promises",
            "任何字节都不会使解码器以约定之外的方式失败",
        ),
        "make fuzz TARGETS=--noted SECONDS={count}",
        _fuzzed,
        count=300,
        minutes=720,
        is_behind=True,
        others="SQLite",
    ),
    Row(
        "access",
        (
            "Servers with accounts refuse every request of remoting or gRPC that is unsigned, "
            "forged or changed, and show no message to an account without permission",
            "启用账号的服务器拒绝任何未签名、伪造或被篡改的 remoting 与 gRPC 请求，"
            "也不向无权限的账号展示任何消息",
        ),
        "python -m gate.access",
        _asked,
        minutes=15,
    ),
    Row(
        "accounts",
        (
            "An account does what its rules permit and no more; one that is revoked is refused "
            "within two seconds, however a valid file is replaced",
            "账号只能做其规则允许的事；无论以何种方式换上有效的规则文件，被撤销的账号两秒内即被拒绝",
        ),
        "python -m pytest tests/serving/test_access_file.py tests/broker/test_access.py",
        minutes=15,
    ),
    Row(
        "secrets",
        (
            "Keys, tokens and passwords stand in no log, error, repr, argument, page, metric or "
            "plan, and in no saved file but those that they were given in",
            "密钥、令牌与密码只出现在用户写入它们的文件中，"
            "不出现在日志、错误、repr、进程参数、页面、指标、执行计划及其他文件里",
        ),
        "python -m gate.secrets",
        _searched,
        minutes=30,
    ),
    Row(
        "networks",
        (
            "Partitions one way and both, loss, delay, half-open connections, name servers away or "
            "behind, members stopped for 90 s, and brokers that restart lose nothing; what comes "
            "again is bounded, each key comes in order, and queues have owners again within 30 s",
            "单向与双向分区、丢包、延迟、半开连接、NameServer 不可达或路由过期、成员暂停 90 秒、"
            "Broker 重启，均不丢消息；重复有上限，每个 key 保持顺序，队列在 30 秒内重新有主",
        ),
        "make soak",
        minutes=30,
        others="Jepsen, openchaos",
    ),
    Row(
        "spark",
        (
            "A query whose driver, executors, Python workers, or worker of a standalone cluster "
            "are killed writes each message once",
            "driver、executor、Python worker 或 standalone 集群的 worker 被 kill 的查询，"
            "每条消息恰好写入一次",
        ),
        "make soak-spark SPARK_KILLS={count} SINK_KILLS={count}",
        _spark_killed,
        count=100,
        minutes=120,
    ),
    Row(
        "peers",
        (
            "Clients, brokers and stores of Apache RocketMQ 4.9.7 and 5.5.0 work with SparrowMQ's",
            "Apache RocketMQ 4.9.7 与 5.5.0 的客户端、Broker 和存储可与 SparrowMQ 互通",
        ),
        "make interop-peers INTEROP='python -m gate.files --name peers -m interop'",
        _passed_at_last,
        minutes=180,
    ),
    Row(
        "foreign",
        (
            "Apache's Go and C++ clients, ali-ons and mqadmin work with SparrowMQ's brokers",
            "Apache 的 Go 与 C++ 客户端、ali-ons 和 mqadmin 可与 SparrowMQ 的 Broker 配合使用",
        ),
        "make interop-clients INTEROP='python -m gate.files --name foreign -m interop'",
        _passed_at_last,
        minutes=120,
    ),
    Row(
        "suite",
        (
            "The integration tests of Apache RocketMQ 4.9.7 and 5.5.0 pass on SparrowMQ's brokers",
            "Apache RocketMQ 4.9.7 与 5.5.0 的集成测试在 SparrowMQ 的 Broker 上通过",
        ),
        "make interop-suite",
        minutes=90,
    ),
    Row(
        "upgrade",
        (
            "A store and a group go on under a newer version, also after a kill of the older one, "
            "and back under the older one after a clean stop, members of both in one group: no "
            "message is lost, moved or stored twice, also delayed, timed, half and popped ones "
            "that wait meanwhile, and none consumed twice where a member of this version takes "
            "part",
            "存储与消费者组可升级到新版本（旧版本被 kill 亦可），正常停止后可退回旧版本，"
            "同一组内新旧成员并存：消息（含其间等待的延迟、定时、半消息与已 pop 的消息）"
            "不丢失、不移位、不重复存储；凡有本版本成员参与，均不重复消费",
        ),
        "python -m gate.upgrade",
        _upgraded,
        minutes=15,
    ),
    Row(
        "licences",
        ("Every dependency's licence allows its use", "每个依赖的许可证都允许使用"),
        "python tools/audit.py",
        lambda output: f"{len(output.splitlines())} dependencies",
        minutes=5,
    ),
    Row(
        "artefacts",
        (
            "Two builds of the same sources are equal byte by byte; the bill of materials names "
            "each version, hash and licence of the lock",
            "同一源码的两次构建逐字节相同；物料清单（SBOM）列出锁文件中的每个版本、哈希与许可证",
        ),
        "python -m pytest tests/test_package.py tests/test_sbom.py",
        minutes=10,
    ),
    Row(
        "weaknesses",
        ("No dependency has a known weakness", "所有依赖都没有已知漏洞"),
        "make audit",
        lambda output: output.strip().splitlines()[-1] if output.strip() else "",
        minutes=15,
    ),
    Row(
        "tests",
        ("The tests pass", "测试全部通过"),
        "make test long",
        minutes=40,
    ),
    Row(
        "steady",
        (
            "The test files that have failed by chance most often pass in any order, with more "
            "workers than cores",
            "曾最常偶然失败的测试文件，无论顺序如何、worker 多于 CPU 核数时都能通过",
        ),
        "python -m gate.steady --runs {count}",
        _repeated,
        count=50,
        minutes=150,
    ),
)
