"""The doctor's texts in Chinese: phrases by their English template, remedies by rule."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# A Chinese remedy belongs to a rule, and names no queue or member of a case.
CHINESE_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "R01": (
            "让每个进程有自己的实例名（Java：-Drocketmq.client.name 或 setInstanceName；S"
            "parrowMQ：instance_name，默认唯一），或升级 4.9 "
            "之前的客户端：它们默认用进程号，在容器里总是相同。如果某个成员在两分钟内重连"
            "过，旧连接可能仍在列表中，请稍后再看。"
        ),
        "R02": (
            "让每个进程有自己的实例名（Java：-Drocketmq.client.name 或 setInstanceName；S"
            "parrowMQ：instance_name，默认唯一）。如果某个成员在两分钟内重连过，旧连接可能"
            "仍在列表中，请稍后再看。"
        ),
        "R03": (
            "检查它们使用的 NameServer 地址。使用两个集群的进程要为每个集群设置不同的实例"
            "名，因为 clientId 不含 NameServer 地址的客户端会在两者之间共用一个连接。"
        ),
        "R04": "先让每个进程有自己的 clientId，再查监听器为什么失败。",
        "R05": "让组内所有成员订阅相同的 Topic，否则分成两个组。",
        "R06": "让所有成员使用相同的订阅表达式；要修改表达式，请换一个新组，或先停止全部成员。",
        "R07": "半分钟后再看；如果仍在，见 R05 和 R06。",
        "R08": (
            "检查这些成员能否连到该 Broker（地址、端口、防火墙：成员必须能用 Broker 注册的"
            "地址连到该 Topic 的每个 Broker）。成员每 30 秒发送一次心跳；缺失更久的，请重"
            "启。"
        ),
        "R09": (
            "检查这些成员能否连到该 Broker（地址、端口、防火墙：成员必须能用 Broker 注册的"
            "地址连到该 Topic 的每个 Broker）。成员每 30 秒发送一次心跳；缺失更久的，请重"
            "启。"
        ),
        "R10": (
            "成员在 30 秒内发现新队列，再过最多 20 秒接手；重启没有接手的成员（旧版 Go 客"
            "户端从不刷新路由），并确认所有成员的分配策略相同。"
        ),
        "R11": (
            "增加队列或 Broker 之前，让组以 CONSUME_FROM_FIRST_OFFSET 启动（只对没有提交过"
            "位点的队列生效），或先为新队列提交位点 0。"
        ),
        "R12": "不要取消最后一个 Topic 的订阅，应当关闭消费者。",
        "R13": (
            "如果持续 20 秒以上：为所有成员设置相同的分配策略，并使用算法和排序与 Java 一"
            "致的客户端版本。"
        ),
        "R14": (
            "让 Topic 的队列数至少等于成员数，或停止空闲的成员；增加监听器的线程是另一种提"
            "速的办法。"
        ),
        "R15": "让每个 Topic 的队列数是成员数的整数倍，或每个 Topic 使用一个组。",
        "R16": "在每个有 Broker 的机房运行成员，或使用不分机房的策略。",
        "R17": "检查生产者选择队列的 key 是否分布不均，或该成员是否比其他成员慢。",
        "R18": (
            "CONSISTENT_HASH 迁移较少，但份额不均；所有成员都是 SparrowMQ "
            "时，MINIMAL_MOVE 迁移最少；模拟器可以比较全部策略。"
        ),
        "R19": "半分钟后再看；监听器必须能承受重复消息。",
        "R21": "让实例名和该文件在重启后保留。",
        "R22": "一分钟后再看；如果仍在，检查还有谁持有该队列（R01、R13）。",
        "R25": "改用并发监听器，或每个成员使用自己的组（CLUSTERING）。",
        "R26": (
            "如果反复出现：检查 Broker 的负载和网络（应答超过 3 秒、防火墙或代理的空闲超时"
            "），以及客户端日志中的断连；升级一次超时就断连的客户端。"
        ),
        "R27": (
            "检查慢的 Broker；并行发送心跳的客户端（SparrowMQ，以及启用 enableConcurrentH"
            "eartbeat 的新版 Java）只需等待最慢的一个。"
        ),
        "R28": (
            "检查该进程在做什么（被挂起、内存不足、监听器不返回、没有关闭就丢弃的消费者）"
            "，然后结束它。"
        ),
        "R30": (
            "查看该位点的消息，以及监听器在处理它时做什么（没有超时的调用？）；这与重平衡无关。"
        ),
        "R32": "不需要处理。",
        "R33": "让每个集群使用自己的 NameServer，并让每个 Broker 注册到列表中的全部 NameServer。",
        "Q01": (
            "把 readQueueNums 提高到 writeQueueNums；要缩减 Topic，先降低 writeQueueNums，"
            "等那些队列读空之后再降低 readQueueNums。"
        ),
        "Q02": (
            "创建该 Topic，改正 Topic 名称或 NameServer 地址，或在这些 Broker 上把 Topic "
            "的权限设为 6（可读可写）。"
        ),
        "Q03": "检查它是否在运行，能否用它注册的地址连到它。",
        "Q04": "启动消费者；如果已在运行，检查它们使用的 NameServer 和组名。",
        "Q05": "人工比较所有成员的设置。",
        "Q06": (
            "手中有消息的成员在等待监听器：检查监听器调用的服务（数据库、停机的服务）和它"
            "的线程；手中没有消息的成员没有拉取：检查它是否被挂起，日志里是否有 Broker 的"
            "拒绝。"
        ),
        "Q07": (
            "让监听器更快，增加线程、成员或队列；如果只有个别成员慢，查明它与其他成员有何不同。"
        ),
        "Q08": "有人重置了位点，或两个进程轮流为同一队列提交位点：见 R01、R02 和 R13。",
        "Q09": "在每个成员都运行 SparrowMQ 之前，所有成员使用 AVG 或其他 RocketMQ 自带的策略。",
        "Q10": "一分钟后再看：突发会过去；如果持续，见 Q07 的建议。",
        "Q11": (
            "检查生产者如何选择队列：sharding key 取值太少，或某个值过于频繁，或手工指定了"
            "队列；不需要保持顺序的消息应当分散。"
        ),
        "Q12": (
            "找出监听器在等什么（数据库、远程调用、锁），并为它设置超时；等待型的监听器增"
            "加线程有用，计算型的没有用。"
        ),
    }
)

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
        "{messages} behind, perhaps consumed but not yet committed": (
            "堆积 {messages}，可能已消费但尚未提交"
        ),
        "{messages} behind, not growing now": "堆积 {messages}，目前没有增长",
        "{messages} behind, growing by {rate} a second": "堆积 {messages}，每秒增加 {rate} 条",
        "{messages} behind, shrinking by {rate} a second: none left in {time}": (
            "堆积 {messages}，每秒减少 {rate} 条，预计 {time}后消费完"
        ),
        "{messages} behind: more than the input of {time}, which members may have consumed but "
        "not yet committed": "堆积 {messages}，超过 {time}的生产量（这一部分可能已消费但尚未提交）",
        "{produced} messages a second in, {consumed} out": (
            "每秒生产 {produced} 条，消费 {consumed} 条"
        ),
        "all {n} queues: {rate} messages a second in": "全部 {n} 个队列：每秒生产 {rate} 条",
        "the topic's other queues: at most {n} messages behind": (
            "该 Topic 的其他队列：最多堆积 {n} 条"
        ),
        "no offset moved within {time}": "{time}内没有任何位点前进",
        "none of the member's offsets moved within {time}": "{time}内该成员的位点都没有前进",
        "offset {offset} of {end} did not move within {time}": (
            "位点 {offset}（最大位点 {end}）在 {time}内没有前进"
        ),
        "the last message consumed was stored {time} ago": "最近消费的消息存储于 {time}前",
        "{topic}: {time} per call, {rate} messages a second": (
            "{topic}：每次调用耗时 {time}，每秒处理 {rate} 条"
        ),
        "{topic} has received {messages} so far": "至今有 {messages}进入 {topic}",
        "the retry topic grows by {rate} messages a second": "重试 Topic 每秒增加 {rate} 条",
        # Members
        "{id} is listed {n} times: connections from {addresses}": (
            "{id} 在列表中出现 {n} 次，连接来自 {addresses}"
        ),
        "the first look did not show every duplicate: a member may be reconnecting": (
            "第一次查看时还没有全部这些重复：可能是某个成员正在重连"
        ),
        "{id} consumes nothing": "{id} 没有消费",
        "{id}: {queues}": "{id}：{queues}",
        "{id}: topic {topic}": "{id}：Topic {topic}",
        "{id}: {rates}, {lag} behind": "{id}：{rates}，堆积 {lag} 条",
        "{id}: {rates}, {lag} behind, {messages} in hand": (
            "{id}：{rates}，堆积 {lag} 条，手中 {messages}"
        ),
        "{id} has {messages} in hand": "{id} 手中有 {messages}",
        "{id} has {messages} in hand and last pulled {time} ago": (
            "{id} 手中有 {messages}，最近一次拉取在 {time}前"
        ),
        "{id} does not report its messages in hand": "{id} 没有报告手中的消息",
        "{id} subscribes no topic": "{id} 没有订阅任何 Topic",
        "{id} consumes in order": "{id} 是顺序消费",
        "{id} runs a client in {language}": "{id} 的客户端语言为 {language}",
        "{id} runs another client ({language})": "{id} 使用其他客户端（{language}）",
        "of an unknown language": "语言未知",
        "the member does not answer requests for its state": "该成员没有响应对其运行信息的查询",
        "other members' offsets moved meanwhile": "同一时间其他成员的位点在前进",
        "owner: {ids}": "归属：{ids}",
        "idle: {ids}": "空闲：{ids}",
        "joined: {ids}": "加入：{ids}",
        "left: {ids}": "离开：{ids}",
        "missing there: {ids}": "其中缺少：{ids}",
        "{id} at {broker}: connected from {before}, then from {address}": (
            "{id} 在 {broker}：连接先来自 {before}，后来自 {address}"
        ),
        "{queues}, {members}, strategy {name}": "{queues}，{members}，分配策略 {name}",
        "a new member whose id sorts first, in the middle or last moves {moved} queues; "
        "{needed} would be enough": (
            "新成员排在最前、中间或最后时，分别迁移 {moved} 个队列；最少只需迁移 {needed} 个"
        ),
        "the group starts with {names}": "消费起点为 {names}",
        "subscribed at {brokers}: {ids}": "在 {brokers} 上订阅的成员：{ids}",
        # Titles and consequences
        "the group consumes nothing, though every member is connected": (
            "成员都在线，但整个组没有消费"
        ),
        "the group falls behind slowly": "消费缓慢落后于生产",
        "a group with duplicate client ids sends messages back for retry": (
            "clientId 重复的组正在把消息送回重试"
        ),
        "the group is rebalancing right now": "该组正在重平衡",
        "a member subscribes nothing and keeps its share": (
            "有成员没有订阅任何 Topic，却仍占一份队列"
        ),
        "members run different strategies": "成员使用了不同的分配策略",
        "the group is BROADCASTING: every member reads every queue": (
            "该组为广播模式：每个成员都读全部队列"
        ),
        "a BROADCASTING group uses an ordered listener": "广播模式的组使用了顺序监听器",
        "the group consumes by POP: brokers assign queues": "该组使用 POP 消费：队列由 Broker 分配",
        "no member of this group is connected": "该组没有成员在线",
        "{n} of {members}: {what}": "{members}中有 {n} 个{what}",
        "messages arrive faster than they are consumed": "跟不上生产速度",
        "the backlog is shrinking": "正在消化积压",
        "the backlog does not shrink": "没有消化积压",
        "the backlog grows by {messages} every hour": "每小时多堆积 {messages}",
        "at this pace the members catch up in {time}": "按现在的速度，{time}后追上",
        "the backlog does not change": "维持不变",
        "{messages} behind: {means}": "堆积 {messages}：{means}",
        "the offset of {queues} went back": "{queues}的位点回退",
        "{messages} may be consumed again": "可能重复消费 {messages}",
        "the backlog grows by {messages} every hour if this pace lasts": (
            "如果持续下去，每小时多堆积 {messages}"
        ),
        "the listener of {id} is slow": "{id} 的监听器耗时过长",
        "on several hosts or containers": "（在不同主机或容器上）",
        "on one host": "（在同一主机上）",
        "client id {id}": "clientId {id} ",
        "each of {n} client ids": "{n} 个 clientId ",
        "several processes {where} use {name}": "{name}被多个进程同时使用{where}",
        "processes on one host share one offset file, and each overwrites the other's offsets": (
            "同一主机上的进程共用一个位点文件，互相覆盖位点"
        ),
        "nobody consumes {queues} ({backlog})": "无人消费：{queues}（{backlog}）",
        "both processes consume {queues}: every message twice": (
            "两个进程都在消费：{queues}，每条消息消费两次"
        ),
        "no queue falls to these ids now, by chance; the next rebalance may give them one": (
            "目前碰巧没有队列分给这些 clientId；下一次重平衡就可能分到"
        ),
        "{parts}": "{parts}",
        "members' shares of all topics together differ by {n} queues": (
            "所有 Topic 合计，成员的份额相差 {n} 个队列"
        ),
        "members of machine room {rooms} have unequal shares": "机房 {rooms} 的成员份额不均",
        "topic {topic} has {queues} far behind the others": (
            "Topic {topic} 有 {queues}堆积远多于其他队列"
        ),
        "most of the work falls to {ids} while other members wait: queues are divided by "
        "number, never by load": (
            "{ids} 承担了大部分工作，其他成员在等待：队列按数量分配，从不按负载分配"
        ),
        "{share} of the messages of topic {topic} go into {queues}": (
            "Topic {topic} 有 {share} 的消息进入 {queues}"
        ),
        "most of the work falls to {ids}; a queue has one owner, so more members or queues do "
        "not help": "大部分工作由 {ids} 承担；一个队列只属于一个成员，增加成员或队列都没有帮助",
        "queue {queue} stands still": "队列停滞：{queue}",
        "{backlog}: the offset cannot pass a message whose listener has not returned, although "
        "later messages may be done; the later messages are consumed again if the member ends": (
            "{backlog}：监听器没有返回的那条消息，位点无法越过，即使后面的消息已经处理完；成"
            "员一旦结束，它们会重新投递"
        ),
        "broker {broker} knows no member of the group": "Broker {broker} 上没有该组的成员",
        "a member that asks this broker for the member list gets none and keeps its queues: "
        "queues that other members gave up stay unread ({queues}: {backlog})": (
            "成员向该 Broker "
            "查询组成员时得不到结果，于是保持原有队列：其他成员放弃的队列无人读取（{queues}，"
            "{backlog}）"
        ),
        "broker {broker} does not list {members} of the group": (
            "Broker {broker} 上缺少该组 {members}"
        ),
        "members compute their shares from different lists, because each asks a random broker: "
        "{queues} may have no owner or two, and a missing member that asks this broker gives up "
        "all its queues": (
            "每个成员随机向一个 Broker 查询，因而按不同的列表计算份额：{queues} "
            "可能无人归属或有两个归属；向该 Broker 查询又不在其列表中的成员会放弃全部队列"
        ),
        "each member asks a random broker for the list: one that computes its share from this "
        "list leaves queues with no owner or two, and a missing member that asks this broker "
        "gives up all its queues": (
            "每个成员随机向一个 Broker 查询组成员：按这份列表计算份额的成员会使一些队列无人归属或有"
            "两个归属；向该 Broker 查询又不在其列表中的成员会放弃全部队列"
        ),
        "{members} of {n} without a queue": "{n} 个成员中有 {members}没有分到队列",
        "strategy {names} in a group whose members do not all run SparrowMQ": (
            "组内并非所有成员都使用 SparrowMQ，却采用了策略 {names}"
        ),
        "member {id} is listed but consumes nothing": "成员 {id} 在列表中，但没有消费",
        "{queues} stand still ({backlog}) while brokers list the member: up to two minutes "
        "after its last heartbeat, or as long as its process lives": (
            "只要 Broker "
            "的列表中还有它，这些队列就停滞：{queues}（{backlog}）；时间为最后一次心"
            "跳后最多两分钟，或直到进程结束"
        ),
        "members of topic {topic} are connected to another cluster": (
            "Topic {topic} 的成员连到了另一个集群"
        ),
        "these members do not consume {queues}: the topic does not exist in the cluster that "
        "they are connected to": ("这些成员不消费 {queues}：在它们所连的集群里，这个 Topic 不存在"),
        "topic {topic} is served by {n} clusters": "Topic {topic} 分布在 {n} 个集群上",
        "name servers disagree about topic {topic}": "各 NameServer 对 Topic {topic} 的路由不一致",
        "one more member would move {share} of the queues": "再加入一个成员会迁移 {share} 的队列",
        "{members} reconnected between the looks": "两次查看之间有 {members}重连",
        "a member takes about {seconds} s to send heartbeats to {brokers}": (
            "成员向 {brokers}发送心跳约需 {seconds} 秒"
        ),
        "members subscribe different topics: {topics}": "同组成员订阅的 Topic 不一致：{topics}",
        "some members never consume their share of": "有成员从不消费自己的份额：",
        "nobody consumes": "无人消费：",
        "{part} {queues} ({backlog}), since every member gets a share of every topic; "
        "brokers refuse pulls for topics that the last heartbeat did not name": (
            "{part}{queues}（{backlog}），因为每个成员在每个 Topic "
            "上都占一份；对最后一次心跳没有提到的 Topic，Broker 还会拒绝拉取"
        ),
        "members subscribe different tags of topic {topic}": (
            "成员对 Topic {topic} 的 Tag 过滤不一致"
        ),
        "broker {broker} holds an older subscription than members": (
            "Broker {broker} 上的订阅比成员的旧"
        ),
        "the group counts this member, so nobody consumes the queues of its share: {queues} "
        "({backlog})": ("组内仍把它算作成员，所以它那一份队列无人消费：{queues}（{backlog}）"),
        "no member has taken {queues} of its share": ("有 {queues}按份额应有归属，却没有成员持有"),
        "nobody consumes these queues: {backlog}": "这些队列无人消费：{backlog}",
        "the group has no committed offset in {queues} with messages": (
            "{queues}有消息但没有提交过位点"
        ),
        "a member that takes such a queue may begin at its end: {messages} would never be "
        "consumed": ("取得这种队列的成员可能从末尾开始：{messages}将永远不会被消费"),
        "several members hold {queues} at once": "{queues}同时被多个成员持有",
        "{queues}: every message is consumed twice": "{queues}：每条消息都消费两次",
        "ordered consumers hold no lock on {queues}": "顺序消费者有 {queues}没有加锁",
        "{backlog}: an ordered consumer reads nothing without the broker's lock; the lock of a "
        "dead owner lasts up to 60 s, and Java clients up to 4.9.4 notice a new lock up to 20 s "
        "late": (
            "{backlog}：顺序消费者没有拿到 Broker "
            "的锁就不读取；持有者已死的锁最多保留 60 秒，4.9.4 及以前的 Java "
            "客户端最多晚 20 秒发现新锁"
        ),
        "topic {topic} accepts messages in queues that no member may read": (
            "Topic {topic} 有可写但不可读的队列"
        ),
        "no member ever gets {queues}; stored there: {messages}": (
            "没有成员能得到 {queues}；其中已存有 {messages}"
        ),
        "no name server knows topic {topic}, which the group subscribes": (
            "该组订阅了 Topic {topic}，但 NameServer 上没有它"
        ),
        "some brokers do not let members read topic {topic}": (
            "Topic {topic} 并非在每个 Broker 上都可读"
        ),
        "broker {broker} does not answer": "Broker {broker} 没有响应",
        "nothing is consumed: {backlog}": "没有消费：{backlog}",
        "all stored messages are consumed; nobody consumes new messages": (
            "已有的消息都已消费；新来的消息不会被消费"
        ),
        "strategy {name} depends on settings that no member reports": (
            "策略 {name} 依赖成员没有报告的设置"
        ),
        "idle members consume nothing; more members do not make this group faster": (
            "多出来的成员什么也不消费，再增加成员也不会更快"
        ),
        "members that do not run SparrowMQ do not know this strategy and use one of RocketMQ's: "
        "shares overlap, and other queues have no owner; the owners shown here follow "
        "SparrowMQ's arithmetic only": (
            "不运行 SparrowMQ 的成员不认识这种策略，使用 RocketMQ 自己的策略：份额重叠，另"
            "一些队列无人消费；这里显示的归属只按 SparrowMQ 的算法计算"
        ),
        "for a moment a queue may have two owners or none, and its next owner may consume "
        "messages in hand again; other findings may hold for this moment only": (
            "片刻之间，队列可能由两个成员消费或无人消费，手中的消息会在别处再来；其他诊断"
            "结果可能只反映这一刻"
        ),
        "members share the queues of all these clusters; queues of a cluster that their owner "
        "cannot reach stay unread": ("成员分担所有集群的队列，而成员连不上的集群，其队列无人消费"),
        "members that ask different name servers divide different queues: some queues have two "
        "owners, others none": (
            "向不同 NameServer 查询的成员分配的队列不同：一些队列由两个成员消费，一些无人消费"
        ),
        "messages are filtered by the tags of their queue's owner, or of the last heartbeat: "
        "messages that only another member subscribes are skipped for good": (
            "消息按队列所属成员的 Tag（或最后一次心跳的 Tag）过滤：其他成员想要的消息被永久跳过"
        ),
        'the broker refuses pulls with "subscription not latest" (code 25) until the member\'s '
        "next heartbeat, 30 s at most": (
            "Broker 以 “subscription not latest”（错误码 "
            "25）拒绝拉取，直到成员的下一次心跳，最多 30 秒"
        ),
        "queues of rooms without a member are divided room by room, and the first ids get each "
        "room's extra queues; the last ids may get none": (
            "没有成员的机房，其队列逐机房分配，每次多出的都归排在最前的成员；排在最后的成"
            "员可能永远分不到"
        ),
        "each process with a duplicate id sends a failed message back, so the copies double "
        "with every round until they reach the dead letter queue": (
            "共用 clientId 的每个进程都会把失败的消息各送回一次，所以每轮重试消息翻倍，直"
            "到进入死信队列"
        ),
        "whenever a member joins or leaves, most queues pause, and messages in hand that were "
        "not committed are consumed again": (
            "每当成员加入或离开，大部分队列都会暂停，手中尚未提交的消息会重复消费"
        ),
        "brokers notify the whole group of every closed and every new connection, and every "
        "notice makes every member rebalance; a client that closes its connection after one "
        "late answer keeps the group rebalancing": (
            "每当连接断开或建立，Broker 都会通知全组，每个成员都会重平衡；因一次应答超时就"
            "断开连接的客户端会让这种情况不断重演"
        ),
        "RocketMQ's client sends heartbeats to one broker after another and rebalances "
        "afterwards: the client starts late, and the last broker may list the member too late "
        "for the other members": (
            "RocketMQ 的客户端依次向各个 Broker "
            "发送心跳，之后才重平衡：启动因此变慢，最后收到心跳的 Broker 也可能太晚才列出"
            "它"
        ),
        "each member keeps its offsets in a file under its client id, so no broker knows the "
        "member's progress; without the file the member starts anew": (
            "位点保存在各成员的文件里（按 clientId），所以 Broker 不知道消费到哪里；没有这"
            "个文件，成员会重新开始"
        ),
        "Java clients request the broker's lock on each queue, which one member at a time "
        "holds, and may never read a queue that they did not lock: messages reach some members "
        "only, or none": (
            "Java "
            "客户端会为每个队列申请只能由一个成员持有的锁，没拿到锁的队列可能永远不读：消"
            "息只到达部分成员，甚至没有成员"
        ),
        "the owners shown here hold for groups that pull; they do not apply to this group": (
            "这里显示的归属适用于拉取消费的组，对 POP 消费不适用"
        ),
        "if members cannot reach the broker either, its queues stand still": (
            "如果成员也连不上该 Broker，它的队列就会停滞"
        ),
        "owners are known only for members that report their queues": (
            "只有报告了自己持有哪些队列的成员，其归属才是已知的"
        ),
        "members compute their shares by different rules: some queues have no owner or two": (
            "成员各自按不同的规则计算份额：一些队列无人消费，一些由两个成员消费"
        ),
        "no message of the topic is consumed": "该 Topic 的消息无人消费",
        "no member gets the topic's queues at these brokers, even if they hold messages": (
            "这些 Broker 上该 Topic 的队列不分配给任何成员，即使其中有消息"
        ),
        "strategy {name} divides every topic separately and gives each topic's extra queues to "
        "the first ids; the last ids get the fewest queues": (
            "策略 {name} 逐个 Topic 计算，每个 Topic 多出的队列都给最前的成员；最后的成员最空闲"
        ),
        # Brokers and name servers
        "asked {brokers}": "已查询 {brokers}",
        "all brokers together took {time} to answer this machine": (
            "从这里依次查询全部 Broker 共耗时 {time}"
        ),
        "other brokers list {ids}": "其他 Broker 的列表：{ids}",
        "{broker} at {address} lists no member": "{broker}（{address}）的列表为空",
        "{broker} at {address} lists {ids}": "{broker}（{address}）的列表：{ids}",
        "{broker} at {address}: {n} ms": "{broker}（{address}）：{n} 毫秒",
        "{broker} gives no read permission": "{broker} 上没有读权限",
        "{broker} belongs to cluster {cluster}": "{broker} 属于集群 {cluster}",
        "{server} knows {brokers}": "{server} 上注册的 Broker：{brokers}",
        "no broker of the topic": "无",
    }
)
