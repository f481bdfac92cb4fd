"""The page's texts in Chinese, by their English. The terms are those of RocketMQ's community."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

CHINESE_COUNTS: Mapping[str, str] = MappingProxyType(
    {"queue": "个队列", "row": "行", "message": "条消息", "group": "个消费者组", "byte": "字节"}
)


class RuleText(NamedTuple):
    """One of the doctor's rules: what it is about, what that does to messages, what to do."""

    name: str
    consequence: str
    remedy: str


# What a finding is about in one case (its title) stays in the doctor's own words.
CHINESE_RULES: Mapping[str, RuleText] = MappingProxyType(
    {
        "R01": RuleText(
            "clientId 重复（不同主机或容器）",
            "两个进程各自算出同一份队列：这些队列的消息全部消费两次，而另一份队列无人消费。",
            (
                "让每个进程有自己的实例名（Java：-Drocketmq.client.name 或 setInstanceName；Sparr"
                "owMQ：instance_name，默认唯一），或升级 4.9 之前的客户端：它们默认用进程号，在容"
                "器里总是相同。如果某个成员在两分钟内重连过，旧连接可能仍在列表中，请稍后再看。"
            ),
        ),
        "R02": RuleText(
            "clientId 重复（同一主机）",
            "两个进程各自算出同一份队列：这些队列的消息全部消费两次，而另一份队列无人消费。",
            (
                "让每个进程有自己的实例名（Java：-Drocketmq.client.name 或 setInstanceName；Sparr"
                "owMQ：instance_name，默认唯一）。如果某个成员在两分钟内重连过，旧连接可能仍在列"
                "表中，请稍后再看。"
            ),
        ),
        "R03": RuleText(
            "成员连到了另一个集群",
            "这些成员不消费该 Topic：在它们所连的集群里，这个 Topic 不存在。",
            (
                "检查它们使用的 NameServer 地址。使用两个集群的进程要为每个集群设置不同的实例名，"
                "因为 clientId 不含 NameServer 地址的客户端会在两者之间共用一个连接。"
            ),
        ),
        "R04": RuleText(
            "clientId 重复导致重试消息成倍增加",
            (
                "共用 clientId 的每个进程都会把失败的消息各送回一次，所以每轮重试消息翻倍，直到进"
                "入死信队列。"
            ),
            "先让每个进程有自己的 clientId，再查监听器为什么失败。",
        ),
        "R05": RuleText(
            "同组成员订阅的 Topic 不一致",
            (
                "每个成员在每个 Topic 上都占一份，但没有订阅的成员不消费它那一份；Broker 还会拒绝"
                "拉取最后一次心跳没有提到的 Topic。"
            ),
            "让组内所有成员订阅相同的 Topic，否则分成两个组。",
        ),
        "R06": RuleText(
            "同组成员的 Tag 过滤不一致",
            (
                "消息按队列所属成员的 Tag（或最后一次心跳的 Tag）过滤：其他成员想要的消息被永久跳"
                "过。"
            ),
            "让所有成员使用相同的订阅表达式；要修改表达式，请换一个新组，或先停止全部成员。",
        ),
        "R07": RuleText(
            "Broker 上的订阅不是最新",
            (
                "Broker 以 “subscription not latest”（错误码 25）拒绝拉取，直到成员的下一次心跳"
                "，最多 30 秒。"
            ),
            "半分钟后再看；如果仍在，见 R05 和 R06。",
        ),
        "R08": RuleText(
            "Broker 上没有成员（重启后未注册）",
            (
                "成员向该 Broker 查询组成员时得不到结果，只好保留现有的队列：别的成员交出的队列无"
                "人消费。"
            ),
            (
                "检查这些成员能否连到该 Broker（地址、端口、防火墙：成员必须能用 Broker 注册的地"
                "址连到该 Topic 的每个 Broker）。成员每 30 秒发送一次心跳；缺失更久的，请重启。"
            ),
        ),
        "R09": RuleText(
            "成员在部分 Broker 上缺失",
            (
                "成员随机选一个 Broker 取名单，于是各自按不同的名单计算：一些队列可能无人消费，或"
                "由两个成员同时消费；向缺名单的 Broker 查询的成员会交出全部队列。"
            ),
            (
                "检查这些成员能否连到该 Broker（地址、端口、防火墙：成员必须能用 Broker 注册的地"
                "址连到该 Topic 的每个 Broker）。成员每 30 秒发送一次心跳；缺失更久的，请重启。"
            ),
        ),
        "R10": RuleText(
            "新增队列无人接手",
            "这些队列无人消费。",
            (
                "成员在 30 秒内发现新队列，再过最多 20 秒接手；重启没有接手的成员（旧版 Go 客户端"
                "从不刷新路由），并确认所有成员的分配策略相同。"
            ),
        ),
        "R11": RuleText(
            "新增队列中的消息会被跳过",
            "接手这些队列的成员可能从末尾开始，已有的消息永远不会被消费。",
            (
                "增加队列或 Broker 之前，让组以 CONSUME_FROM_FIRST_OFFSET 启动（只对没有提交过位"
                "点的队列生效），或先为新队列提交位点 0。"
            ),
        ),
        "R12": RuleText(
            "取消订阅的成员仍占份额",
            "该成员仍算在组内，它那一份队列无人消费。",
            "不要取消最后一个 Topic 的订阅，应当关闭消费者。",
        ),
        "R13": RuleText(
            "成员之间的分配算法不一致",
            (
                "成员各自按不同的规则计算份额：一些队列由多个成员消费，每条消息重复消费，另一些可"
                "能无人消费。"
            ),
            (
                "如果持续 20 秒以上：为所有成员设置相同的分配策略，并使用算法和排序与 Java 一致的"
                "客户端版本。"
            ),
        ),
        "R14": RuleText(
            "成员多于队列，有成员空闲",
            "多出来的成员什么也不消费，再增加成员也不会更快。",
            (
                "让 Topic 的队列数至少等于成员数，或停止空闲的成员；增加监听器的线程是另一种提速"
                "的办法。"
            ),
        ),
        "R15": RuleText(
            "多个 Topic 叠加造成分配倾斜",
            (
                "分配策略逐个 Topic 计算，每个 Topic 多出的队列都归排在最前的成员；排在最后的成员"
                "最空闲。"
            ),
            "让每个 Topic 的队列数是成员数的整数倍，或每个 Topic 使用一个组。",
        ),
        "R16": RuleText(
            "机房策略造成分配倾斜",
            (
                "没有成员的机房，其队列逐机房分配，每次多出的都归排在最前的成员；排在最后的成员可"
                "能永远分不到。"
            ),
            "在每个有 Broker 的机房运行成员，或使用不分机房的策略。",
        ),
        "R17": RuleText(
            "堆积集中在少数队列",
            "少数成员承担大部分工作，其他成员空等：队列按数量分配，不按负载。",
            "检查生产者选择队列的 key 是否分布不均，或该成员是否比其他成员慢。",
        ),
        "R18": RuleText(
            "增减一个成员会迁移大部分队列",
            "每当成员加入或离开，大部分队列都会暂停，手中尚未提交的消息会重复消费。",
            (
                "CONSISTENT_HASH 迁移较少，但份额不均；所有成员都是 SparrowMQ 时，MINIMAL_MOVE 迁"
                "移最少；模拟器可以比较全部策略。"
            ),
        ),
        "R19": RuleText(
            "成员正在变化",
            (
                "片刻之间，队列可能由两个成员消费或无人消费，手中的消息会在别处再来；其他诊断结果"
                "可能只反映这一刻。"
            ),
            "半分钟后再看；监听器必须能承受重复消息。",
        ),
        "R21": RuleText(
            "广播消费的位点由成员自行保存",
            (
                "位点保存在各成员的文件里（按 clientId），所以 Broker 不知道消费到哪里；没有这个"
                "文件，成员会重新开始。"
            ),
            "让实例名和该文件在重启后保留。",
        ),
        "R22": RuleText(
            "顺序消费在等待队列锁",
            (
                "顺序消费者没有 Broker 的锁就不消费；已死成员的锁最多保留 60 秒，Java 4.9.4 及更"
                "早的客户端最多晚 20 秒才发现拿到了锁。"
            ),
            "一分钟后再看；如果仍在，检查还有谁持有该队列（R01、R13）。",
        ),
        "R25": RuleText(
            "广播模式下的顺序消费",
            (
                "Java 客户端会为每个队列申请只能由一个成员持有的锁，没拿到锁的队列可能永远不读："
                "消息只到达部分成员，甚至没有成员。"
            ),
            "改用并发监听器，或每个成员使用自己的组（CLUSTERING）。",
        ),
        "R26": RuleText(
            "连接频繁重建",
            (
                "每当连接断开或建立，Broker 都会通知全组，每个成员都会重平衡；因一次应答超时就断"
                "开连接的客户端会让这种情况不断重演。"
            ),
            (
                "如果反复出现：检查 Broker 的负载和网络（应答超过 3 秒、防火墙或代理的空闲超时）"
                "，以及客户端日志中的断连；升级一次超时就断连的客户端。"
            ),
        ),
        "R27": RuleText(
            "集群大或响应慢，启动耗时长",
            (
                "RocketMQ 的客户端依次向各个 Broker 发送心跳，之后才重平衡：启动因此变慢，最后收"
                "到心跳的 Broker 也可能太晚才列出它。"
            ),
            (
                "检查慢的 Broker；并行发送心跳的客户端（SparrowMQ，以及启用 enableConcurrentHeart"
                "beat 的新版 Java）只需等待最慢的一个。"
            ),
        ),
        "R28": RuleText(
            "在列表中但不消费的成员",
            ("Broker 仍列出该成员期间，它的队列停滞：最后一次心跳之后最多两分钟，或直到进程结束。"),
            (
                "检查该进程在做什么（被挂起、内存不足、监听器不返回、没有关闭就丢弃的消费者），然"
                "后结束它。"
            ),
        ),
        "R30": RuleText(
            "位点停滞（一条消息卡住队列）",
            (
                "监听器没有返回的消息会卡住位点，尽管它后面的消息可能已经完成；成员退出后它们会再"
                "来。"
            ),
            ("查看该位点的消息，以及监听器在处理它时做什么（没有超时的调用？）；这与重平衡无关。"),
        ),
        "R32": RuleText(
            "POP 消费由 Broker 分配",
            "这里显示的归属适用于拉取消费的组，对 POP 消费不适用。",
            "不需要处理。",
        ),
        "R33": RuleText(
            "两个集群混用",
            (
                "成员分担所有集群的队列，或问到不同的 NameServer：连不上的集群的队列无人消费，一"
                "些队列由两个成员消费。"
            ),
            "让每个集群使用自己的 NameServer，并让每个 Broker 注册到列表中的全部 NameServer。",
        ),
        "Q01": RuleText(
            "读队列少于写队列，部分消息无人读",
            "多出的写队列没有成员会分到，其中的消息无人消费。",
            (
                "把 readQueueNums 提高到 writeQueueNums；要缩减 Topic，先降低 writeQueueNums，等"
                "那些队列读空之后再降低 readQueueNums。"
            ),
        ),
        "Q02": RuleText(
            "Topic 不可读",
            "该 Topic 的队列不分配给任何成员，里面的消息无人消费。",
            (
                "创建该 Topic，改正 Topic 名称或 NameServer 地址，或在这些 Broker 上把 Topic 的权"
                "限设为 6（可读可写）。"
            ),
        ),
        "Q03": RuleText(
            "Broker 没有响应",
            "如果成员也连不上它，它的队列就会停滞。",
            "检查它是否在运行，能否用它注册的地址连到它。",
        ),
        "Q04": RuleText(
            "没有成员在线",
            "没有消费任何消息。",
            "启动消费者；如果已在运行，检查它们使用的 NameServer 和组名。",
        ),
        "Q05": RuleText(
            "分配策略未知",
            "只有报告了自己持有哪些队列的成员，其归属才是已知的。",
            "人工比较所有成员的设置。",
        ),
        "Q06": RuleText(
            "有成员有消息，但位点不动",
            "这些队列有消息、有成员，但没有消费。",
            (
                "手中有消息的成员在等待监听器：检查监听器调用的服务（数据库、停机的服务）和它的线"
                "程；手中没有消息的成员没有拉取：检查它是否被挂起，日志里是否有 Broker 的拒绝。"
            ),
        ),
        "Q07": RuleText(
            "消费慢于生产，或正在消化堆积",
            "消费赶不上生产，或者积压正在消化；每个成员的速度见原文。",
            ("让监听器更快，增加线程、成员或队列；如果只有个别成员慢，查明它与其他成员有何不同。"),
        ),
        "Q08": RuleText(
            "位点回退",
            "一些消息可能会再次消费。",
            "有人重置了位点，或两个进程轮流为同一队列提交位点：见 R01、R02 和 R13。",
        ),
        "Q09": RuleText(
            "混合组中使用了 SparrowMQ 独有的策略",
            (
                "不运行 SparrowMQ 的成员不认识这种策略，使用 RocketMQ 自己的策略：份额重叠，另一"
                "些队列无人消费；这里显示的归属只按 SparrowMQ 的算法计算。"
            ),
            "在每个成员都运行 SparrowMQ 之前，所有成员使用 AVG 或其他 RocketMQ 自带的策略。",
        ),
        "Q10": RuleText(
            "堆积持续增长",
            "如果持续下去，堆积会每小时增加。",
            "一分钟后再看：突发会过去；如果持续，见 Q07 的建议。",
        ),
        "Q11": RuleText(
            "生产倾斜：消息集中在少数队列",
            "少数成员承担大部分工作；一个队列只有一个成员，所以增加成员或队列没有用。",
            (
                "检查生产者如何选择队列：sharding key 取值太少，或某个值过于频繁，或手工指定了队"
                "列；不需要保持顺序的消息应当分散。"
            ),
        ),
        "Q12": RuleText(
            "监听器处理单条消息耗时长",
            "监听器的处理速度限制了整个组。",
            (
                "找出监听器在等什么（数据库、远程调用、锁），并为它设置超时；等待型的监听器增加线"
                "程有用，计算型的没有用。"
            ),
        ),
    }
)

# What a finding saw, by the templates of `doctor.finding.Phrase`.
CHINESE_PHRASES: Mapping[str, str] = MappingProxyType(
    {
        # Counts and durations
        "{n} queue": "{n} 个队列",
        "{n} queues": "{n} 个队列",
        "{n} member": "{n} 个成员",
        "{n} members": "{n} 个成员",
        "{n} message": "{n} 条消息",
        "{n} messages": "{n} 条消息",
        "{n} broker": "{n} 个 Broker",
        "{n} brokers": "{n} 个 Broker",
        "{n} connection": "{n} 个连接",
        "{n} connections": "{n} 个连接",
        "{n} ms": "{n} 毫秒",
        "{n} s": "{n} 秒",
        "{n} min": "{n} 分钟",
        "{n} h": "{n} 小时",
        "{n} days": "{n} 天",
        # Queues and how far they are
        "none": "无",
        "nobody": "无",
        "{places}": "{places}",
        "{topic} at {broker}: {ids}": "{broker} 上的 {topic}：{ids}",
        "{queue}: {state}": "{queue}，{state}",
        "{queue} at {id}": "{queue}，归属 {id}",
        "{queue} falls to {ids}": "{queue}，应归 {ids}",
        "{queue}: from {then} to {now}": "{queue}，从 {then} 回到 {now}",
        "{messages} behind": "堆积 {messages}",
        "{messages} behind, on their way": "堆积 {messages}，正在处理中",
        "{messages} behind, not growing now": "堆积 {messages}，目前没有增长",
        "{messages} behind, growing by {rate} a second": "堆积 {messages}，每秒增加 {rate} 条",
        "{messages} behind, shrinking by {rate} a second: none left in {time}": (
            "堆积 {messages}，每秒减少 {rate} 条，预计 {time}后消费完"
        ),
        "{messages} behind: more than {time} of input, which members may have consumed and not "
        "committed yet": "堆积 {messages}，超过 {time}的生产量（这一部分可能已消费但尚未提交）",
        "in {produced} a second, out {consumed}": "每秒生产 {produced} 条，消费 {consumed} 条",
        "all {n} queues: in {rate} a second": "全部 {n} 个队列：每秒生产 {rate} 条",
        "the topic's other queues: {n} at most": "该 Topic 的其他队列：最多堆积 {n} 条",
        "no offset moved within {time}": "{time}内没有任何位点前进",
        "none of its offsets moved within {time}": "{time}内它的位点都没有前进",
        "offset {offset} of {end} did not move within {time}": (
            "位点 {offset}（最大位点 {end}）在 {time}内没有前进"
        ),
        "the last message consumed was stored {time} ago": "最近消费的消息存储于 {time}前",
        "{topic}: {time} for a call, {rate} messages a second": (
            "{topic}：每次调用耗时 {time}，每秒处理 {rate} 条"
        ),
        "{messages} went to {topic} so far": "至今有 {messages}进入 {topic}",
        "it grows by {rate} a second": "每秒增加 {rate} 条",
        # Members
        "{id} is listed {n} times: connections from {addresses}": (
            "{id} 在列表中出现 {n} 次，连接来自 {addresses}"
        ),
        "it was not so a moment ago: this may be a member that is reconnecting": (
            "片刻之前还不是这样：可能是某个成员正在重连"
        ),
        "{id}: nothing": "{id}：没有消费",
        "{id}: {queues}": "{id}：{queues}",
        "{id}: topic {topic}": "{id}：Topic {topic}",
        "{id}: {rates}, {lag} behind": "{id}：{rates}，堆积 {lag} 条",
        "{id}: {rates}, {lag} behind, {messages} in hand": (
            "{id}：{rates}，堆积 {lag} 条，手中 {messages}"
        ),
        "{id} has {messages} in hand": "{id} 手中有 {messages}",
        "{id} has {messages} in hand, pulled last {time} ago": (
            "{id} 手中有 {messages}，最近一次拉取在 {time}前"
        ),
        "{id} does not report what it has in hand": "{id} 没有报告手中的消息",
        "{id} subscribes no topic": "{id} 没有订阅任何 Topic",
        "{id} consumes in order": "{id} 是顺序消费",
        "{id} is written in {language}": "{id} 的客户端语言为 {language}",
        "{id} runs another client ({language})": "{id} 使用其他客户端（{language}）",
        "of an unknown language": "语言未知",
        "it does not answer when it is asked about itself": "查询它的运行信息时没有响应",
        "other members' offsets moved meanwhile": "同一时间其他成员的位点在前进",
        "owner: {ids}": "归属：{ids}",
        "idle: {ids}": "空闲：{ids}",
        "came: {ids}": "加入：{ids}",
        "went: {ids}": "离开：{ids}",
        "missing there: {ids}": "其中缺少：{ids}",
        "{id} at {broker}: from {before}, then from {address}": (
            "{id} 在 {broker}：连接先来自 {before}，后来自 {address}"
        ),
        "{queues}, {members}, strategy {name}": "{queues}，{members}，分配策略 {name}",
        "a newcomer that sorts first, in the middle or last: {moved} queues change hands; "
        "{needed} would do": (
            "新成员排在最前、中间或最后时，分别迁移 {moved} 个队列；最少只需迁移 {needed} 个"
        ),
        "the group starts with {names}": "消费起点为 {names}",
        "subscribed, at {brokers}: {ids}": "在 {brokers} 上订阅的成员：{ids}",
        # Brokers and name servers
        "asked {brokers}": "已查询 {brokers}",
        "answers of all brokers together took {time} from here": (
            "从这里依次查询全部 Broker 共耗时 {time}"
        ),
        "other brokers list {ids}": "其他 Broker 的列表：{ids}",
        "{broker} at {address} lists nobody": "{broker}（{address}）的列表为空",
        "{broker} at {address} lists {ids}": "{broker}（{address}）的列表：{ids}",
        "{broker} at {address}: {n} ms": "{broker}（{address}）：{n} 毫秒",
        "{broker} gives no read permission": "{broker} 上没有读权限",
        "{broker} is of cluster {cluster}": "{broker} 属于集群 {cluster}",
        "{server} knows {brokers}": "{server} 上注册的 Broker：{brokers}",
        "no broker of it": "无",
    }
)

CHINESE: Mapping[str, str] = MappingProxyType(
    {
        # Around every page
        "Overview": "总览",
        "Topics": "主题",
        "Messages": "消息",
        "Dead letters": "死信",
        "Brokers": "Broker",
        "Doctor": "诊断",
        "Simulator": "模拟器",
        "Lab": "演练场",
        "Pages": "页面",
        "Language": "语言",
        "Colours": "配色",
        "auto": "跟随系统",
        "light": "浅色",
        "dark": "深色",
        "Log in": "登录",
        "Log out": "退出登录",
        "Password": "密码",
        "This is not the password.": "密码不正确。",
        "The password was printed once, where this page was started. "
        "It holds until that process ends.": (
            "启动本页面时，密码已在终端打印过一次；该进程结束前一直有效。"
        ),
        "To the content": "跳到正文",
        "The page has lost its server. It tries again by itself.": (
            "页面与服务器的连接已断开，正在自动重试。"
        ),
        "The cluster does not answer; what is shown is old. It is tried again by itself.": (
            "集群没有响应，当前显示的是旧数据；正在自动重试。"
        ),
        "The history is not kept:": "历史记录无法保存：",
        "This cannot be shown": "无法显示",
        "This page looks again by itself.": "页面会自动重试。",
        "cluster at {place}": "集群 {place}",
        "writes allowed": "允许修改",
        "read-only": "只读",
        "keys: / search, j k rows, Enter open, g then o t m d b r s l pages": (
            "快捷键：/ 搜索，j k 选行，Enter 打开，g 加 o t m d b r s l 切换页面"
        ),
        # Tables
        "Search": "搜索",
        "Previous": "上一页",
        "Next": "下一页",
        "{page} of {pages}": "第 {page} 页，共 {pages} 页",
        "No row has “{text}”.": "没有包含“{text}”的行。",
        "Nothing here.": "暂无数据。",
        "Close": "关闭",
        # Findings
        "error": "错误",
        "warn": "警告",
        "info": "提示",
        "Consequence": "后果",
        "Nobody consumes": "无人消费",
        "Consumed twice": "重复消费",
        "In the doctor's own words": "诊断原文（英文）",
        "Remedy": "处理",
        # Durations
        "{n} ms": "{n} 毫秒",
        "{n} s": "{n} 秒",
        "{n} min": "{n} 分钟",
        "{n} h": "{n} 小时",
        "{n} d": "{n} 天",
        "now": "现在",
        # Overview
        "Looking at the cluster …": "正在查看集群……",
        "Broker {name} at {address} does not answer:": "Broker {name}（{address}）没有响应：",
        "Groups": "消费者组",
        "No group has consumed anything yet.": "还没有消费者组消费过消息。",
        "group": "消费者组",
        "groups": "消费者组",
        "trouble": "问题",
        "lag": "堆积",
        "come again": "待重试",
        "in/s": "生产 TPS",
        "out/s": "消费 TPS",
        "members": "成员",
        "queues of nobody": "无人消费的队列",
        "queues of several": "多人同时消费的队列",
        "ids used twice": "重复的 clientId",
        "topics": "主题",
        "messages behind": "堆积消息",
        "brokers answer": "Broker 在线",
        "nobody consumes": "无人消费",
        "and {n} more": "另有 {n} 项",
        # A group
        "in and out a second": "生产 / 消费 TPS",
        "queues": "队列",
        "strategy": "分配策略",
        "strategy, assumed": "分配策略（推定）",
        "What the doctor finds": "诊断结果",
        "Nothing is wrong.": "没有发现问题。",
        "The last look failed; what is shown is from": "最近一次查看失败，显示的数据取自",
        "Why {queue} has its owner": "{queue} 为什么归它消费",
        "by the list of {brokers}": "依据 {brokers} 的成员列表",
        "Who has which queue": "队列归属",
        "Queues": "队列",
        "Topic": "主题",
        "all queues": "全部队列",
        "all topics": "全部主题",
        "behind or in trouble": "有堆积或异常",
        "{n} processes have this id": "{n} 个进程共用此 clientId",
        "lag {n}": "堆积 {n}",
        "does not answer": "没有响应",
        "Nobody is connected.": "没有消费者在线。",
        "queue": "队列",
        "owner": "归属",
        "since": "已持续",
        "drained in": "预计消费完",
        "messages that come again": "重试消息",
        "why has it this owner?": "为什么归它消费？",
        "has it": "正在消费",
        "under its lock at the broker": "持有 Broker 上的队列锁",
        "falls to it, not taken yet": "已分配，尚未接手",
        "still has it": "已不归它，尚未释放",
        "nobody": "无人",
        "everybody": "全部成员",
        "several have it": "多人同时消费",
        "{n} times": "{n} 份",
        "brokers disagree": "各 Broker 不一致",
        "since this page looks; it may be longer": "自本页面开始观察起，实际可能更久",
        "grows": "持续增长",
        "{queues} more are not shown; choose a topic, or those in trouble.": (
            "另有 {queues} 未显示；请选择主题，或只看异常队列。"
        ),
        "No queue is behind or in trouble.": "没有堆积或异常的队列。",
        "The group has no queue.": "该消费者组没有队列。",
        "Timeline": "时间线",
        "Window": "时间范围",
        "Looked at every {shown} while it is on a screen, else every {others}: "
        "what is shorter may be missed. Blank: nobody looked.": (
            "页面打开时每 {shown} 查看一次，否则每 {others} 一次；更短的变化可能看不到。"
            "空白处表示无人观察。"
        ),
        "at most {n}": "最高 {n}",
        "{queues} more are not drawn: those that moved come first.": (
            "另有 {queues} 未画出；发生过迁移的队列优先。"
        ),
        "{n} rebalances in ten minutes: members come and go, or their views differ.": (
            "十分钟内发生 {n} 次重平衡：成员频繁进出，或成员看到的列表不一致。"
        ),
        "Rebalances": "重平衡",
        "when": "时间",
        "why": "原因",
        "queues moved": "迁移队列数",
        "from → to": "从 → 到",
        "settled within": "稳定用时",
        "nobody's for": "无人消费时长",
        "several's for": "多人消费时长",
        "consumed twice, at most": "重复消费（至多）",
        "No queue has changed hands in this window.": "这段时间内没有队列迁移。",
        "{who} joined": "{who} 加入",
        "{who} left": "{who} 离开",
        "one of those with the id of {who} left": "与 {who} 同 clientId 的一个进程离开",
        "{n} processes have the id of {who}": "{n} 个进程共用 {who} 的 clientId",
        "topic {topic}: queues {change}": "主题 {topic}：队列数 {change}",
        "subscription of {topic}: {change}": "主题 {topic} 的订阅：{change}",
        "strategy {change}": "分配策略 {change}",
        "nobody came or went: members saw different lists, or one let go late": (
            "没有成员进出：成员看到的列表不一致，或释放较晚"
        ),
        "; ": "；",
        # Offsets
        "move its offsets": "重置位点",
        "offsets of": "重置位点",
        "go on at": "重置到",
        "What would it do?": "预览",
        "What it would do": "预览",
        "goes on at": "当前位点",
        "would go on at": "重置后位点",
        "never consumed": "跳过",
        "consumed again": "重新消费",
        "{n} members are connected; brokers notify them, and they go on there at once.": (
            "{n} 个成员在线，会立即收到通知并从新位点继续。"
        ),
        "Nobody is connected; members that come go on there.": (
            "没有成员在线；之后加入的成员从新位点开始。"
        ),
        "Move the offsets": "确认重置",
        "This page only reads. Started with --allow-writes it can move them.": (
            "本页面只读；以 --allow-writes 启动后可重置。"
        ),
        # Topics, brokers, doctor
        "topic": "主题",
        "There is no topic yet.": "还没有主题。",
        "messages ever": "累计消息",
        "read by": "消费者组",
        "Read by": "消费者组",
        "No group reads it.": "没有消费者组消费它。",
        "without RocketMQ's own topics": "不含 RocketMQ 系统主题",
        "with RocketMQ's own topics": "包含 RocketMQ 系统主题",
        "{n} a second": "每秒 {n} 条",
        "read its messages": "查看消息",
        "At brokers": "所在 Broker",
        "broker": "Broker",
        "brokers": "Broker",
        "read queues": "读队列",
        "write queues": "写队列",
        "permissions": "权限",
        "addresses": "地址",
        "address": "地址",
        "cluster": "集群",
        "version": "版本",
        "first": "最小位点",
        "end": "最大位点",
        "messages": "消息",
        "last message": "最新消息",
        "No broker is known yet.": "还没有 Broker。",
        "What it says of itself": "运行信息",
        "It has said nothing.": "没有运行信息。",
        "name": "名称",
        "value": "值",
        "severity": "级别",
        "rule": "规则",
        "finding": "发现",
        "{looked} of {groups} are looked at: those that need it first, and those on a screen.": (
            "{groups}中正在观察 {looked} 个：最需要关注的，以及页面上打开的。"
        ),
        # Messages and dead letters
        "key or id": "Key 或消息 ID",
        "tag": "Tag",
        "offset": "位点",
        "from": "起始时间",
        "Show": "查看",
        "The newest first; from an offset or a time on the oldest first. "
        "Nothing is joined and nothing is committed.": (
            "最新的在前；指定位点或时间时从旧到新。不加入消费者组，也不提交位点。"
        ),
        "follow what comes": "跟随新消息",
        "stop following": "停止跟随",
        "Choose a topic.": "请选择主题。",
        "No message is there.": "没有消息。",
        "stored": "存储时间",
        "came again": "已重试次数",
        "Its way": "消息轨迹",
        "at": "时间",
        "what": "动作",
        "sent": "发送",
        "committed": "已提交",
        "rolled back": "已回滚",
        "consumed": "消费",
        "client": "客户端",
        "took": "耗时",
        "outcome": "结果",
        "came before": "此前已投递次数",
        "Nobody has traced it: producers and consumers do with trace on.": (
            "没有轨迹：生产者和消费者需要开启 trace。"
        ),
        "keys": "Key",
        "body": "消息体",
        "bytes": "字节",
        "id": "消息 ID",
        "Message": "消息",
        "message": "消息",
        "id at the broker": "Broker 消息 ID",
        "born": "产生时间",
        "the beginning": "仅开头部分",
        "as a file": "下载",
        "Properties": "属性",
        "It has none.": "没有属性。",
        "No group has dead letters.": "没有消费者组有死信。",
        "{id} was sent to its group again; it comes in some 10 s.": (
            "{id} 已重新投递给其消费者组，约 10 秒后可消费。"
        ),
        "Send to the group again": "重新投递",
        "Send again": "重新投递",
        "No other group gets it, and the dead letter stays where it is.": (
            "其他消费者组不会收到；死信本身保留在原处。"
        ),
        "This page only reads. Started with --allow-writes it can send them again.": (
            "本页面只读；以 --allow-writes 启动后可重新投递。"
        ),
        # Simulator
        "Members come and go; nothing runs and no cluster is asked. "
        "The strategies are those that members call.": (
            "模拟成员进出：不运行任何进程，也不访问集群；所用分配策略与成员实际调用的相同。"
        ),
        "machine rooms": "机房",
        "events": "事件",
        "beside": "对比",
        "the last member has the id of the first": "最后一个成员与第一个 clientId 相同",
        "Simulate": "模拟",
        "at first": "初始",
        "All strategies": "全部策略",
        "whose": "来源",
        "rocketmq": "RocketMQ",
        "sparrowmq": "SparrowMQ",
        "kafka": "Kafka",
        "needlessly": "不必要的迁移",
        "skew": "负载差",
        "idle members": "空闲成员",
        "requests and answers": "请求与响应数",
        "longest wait": "最长等待",
        "stand still meanwhile": "期间暂停",
        "two may consume meanwhile": "期间可能双份消费",
        "Moved: queues that a member which stays lost. Needlessly: more than balance needed. Skew: "
        "the largest share less the smallest. The rest is the sum of all events, or the worst.": (
            "迁移：留下的成员失去的队列；不必要：超出均衡所需；负载差：最大份额减最小份额。"
            "其余为各事件之和或其中最差者。"
        ),
        # Lab
        "A failure, staged with real processes on a cluster of its own, and what the doctor finds "
        "there. The cluster that this page watches is not touched.": (
            "在独立的集群上用真实进程重现故障，并由诊断找出原因；不影响本页面所观察的集群。"
        ),
        "End it": "结束演练",
        "Nothing is wrong any more: the group has healed itself.": "已无异常：消费者组自行恢复。",
        "What it did": "影响",
        "event": "事件",
        "one owner each after": "恢复用时",
        "{sent} messages were sent, {consumed} consumed, {twice} of them more than once.": (
            "发送 {sent} 条，消费 {consumed} 条，其中 {twice} 条重复消费。"
        ),
        "Who had which queue": "队列归属变化",
        "the event": "事件发生",
        "starting a broker and 2 members": "启动一个 Broker 和 2 个成员",
        "starting a broker and 3 members": "启动一个 Broker 和 3 个成员",
        "the doctor looks": "诊断正在查看",
        "one of three members is killed (kill -9)": "三个成员之一被强制杀死（kill -9）",
        "a third member joins two": "两个成员之外加入第三个",
        "one of three members leaves gracefully": "三个成员之一正常退出",
        "a third member joins two, with the client id of the first": (
            "第三个成员加入，且与第一个 clientId 相同"
        ),
        "the third member leaves": "第三个成员退出",
        "one of three members is cut off: it runs on, but nothing passes": (
            "三个成员之一断网：进程仍在运行，但收发不通"
        ),
        "the cut is healed": "网络恢复",
        "the listener of one of two members takes 5 s a message": (
            "两个成员之一的监听器每条消息耗时 5 秒"
        ),
    }
)
