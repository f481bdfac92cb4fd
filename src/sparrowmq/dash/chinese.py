"""The page's texts in Chinese, by their English. The terms are those of RocketMQ's community.

`chinese_findings.py` has the doctor's texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CHINESE_COUNTS: Mapping[str, str] = MappingProxyType(
    {"queue": "个队列", "row": "行", "message": "条消息", "group": "个消费者组", "byte": "字节"}
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
        "The server of this page printed the password once, at its start. The password is valid "
        "until that process ends.": (
            "启动本页面时，密码已在终端打印过一次；该进程结束前一直有效。"
        ),
        "To the content": "跳到正文",
        "The page has lost its server and tries to reach it again.": (
            "页面与服务器的连接已断开，正在自动重试。"
        ),
        "The cluster does not answer; the data shown is old. The server keeps asking.": (
            "集群没有响应，当前显示的是旧数据；正在自动重试。"
        ),
        "The history cannot be kept:": "历史记录无法保存：",
        "This cannot be shown": "无法显示",
        "This page tries again automatically.": "页面会自动重试。",
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
        "to retry": "待重试",
        "dead letters": "死信",
        "to retry / dead letters": "待重试 / 死信",
        "in/s": "生产 TPS",
        "out/s": "消费 TPS",
        "members": "成员",
        "queues without owner": "无人消费的队列",
        "queues with several owners": "多人同时消费的队列",
        "duplicate client ids": "重复的 clientId",
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
        "Who holds which queue": "队列归属",
        "Queues": "队列",
        "Topic": "主题",
        "all queues": "全部队列",
        "all topics": "全部主题",
        "behind or in trouble": "有堆积或异常",
        "{n} processes have this id": "{n} 个进程共用此 clientId",
        "lag {n}": "堆积 {n}",
        "does not answer": "没有响应",
        "No member is connected.": "没有消费者在线。",
        "queue": "队列",
        "owner": "归属",
        "since": "已持续",
        "drained in": "预计消费完",
        "messages to retry": "重试消息",
        "why does this queue have this owner?": "为什么归它消费？",
        "holds the queue": "正在消费",
        "holds the queue and its lock at the broker": "持有 Broker 上的队列锁",
        "should hold the queue, has not taken it yet": "已分配，尚未接手",
        "still holds the queue, should release it": "已不归它，尚未释放",
        "nobody": "无人",
        "everybody": "全部成员",
        "several members hold the queue": "多人同时消费",
        "{n} times": "{n} 份",
        "brokers disagree": "各 Broker 不一致",
        "since the page began to look; the real time may be longer": (
            "自本页面开始观察起，实际可能更久"
        ),
        "grows": "持续增长",
        "{queues} more are not shown; choose a topic, or only the queues in trouble.": (
            "另有 {queues} 未显示；请选择主题，或只看异常队列。"
        ),
        "No queue is behind or in trouble.": "没有堆积或异常的队列。",
        "The group has no queue.": "该消费者组没有队列。",
        "Timeline": "时间线",
        "Window": "时间范围",
        "The server looks at the group every {shown} while a page shows the group, and every "
        "{others} otherwise; shorter changes may be missed. Blank: the server did not look.": (
            "页面打开时每 {shown} 查看一次，否则每 {others} 一次；更短的变化可能看不到。"
            "空白处表示无人观察。"
        ),
        "at most {n}": "最高 {n}",
        "{queues} more are not drawn; queues that moved are drawn first.": (
            "另有 {queues} 未画出；发生过迁移的队列优先。"
        ),
        "{n} rebalances in ten minutes: members come and go, or see different lists.": (
            "十分钟内发生 {n} 次重平衡：成员频繁进出，或成员看到的列表不一致。"
        ),
        "Rebalances": "重平衡",
        "when": "时间",
        "why": "原因",
        "queues moved": "迁移队列数",
        "from → to": "从 → 到",
        "settled after": "稳定用时",
        "without owner for": "无人消费时长",
        "with several owners for": "多人消费时长",
        "consumed twice, at most": "重复消费（至多）",
        "No queue has changed hands in this window.": "这段时间内没有队列迁移。",
        "{who} joined": "{who} 加入",
        "{who} left": "{who} 离开",
        "one of the processes with the id of {who} left": "与 {who} 同 clientId 的一个进程离开",
        "{n} processes have the id of {who}": "{n} 个进程共用 {who} 的 clientId",
        "topic {topic}: queues {change}": "主题 {topic}：队列数 {change}",
        "subscription of {topic}: {change}": "主题 {topic} 的订阅：{change}",
        "strategy {change}": "分配策略 {change}",
        "no member came or went: members saw different lists or released queues late": (
            "没有成员进出：成员看到的列表不一致，或释放较晚"
        ),
        "; ": "；",
        # Offsets
        "move offsets": "重置位点",
        "offsets of": "重置位点",
        "continue at": "重置到",
        "Preview": "预览",
        "What the move would do": "预览",
        "continues at": "当前位点",
        "would continue at": "重置后位点",
        "never consumed": "跳过",
        "consumed again": "重新消费",
        "{n} members are connected; brokers notify them, and they continue at the new offsets "
        "at once.": ("{n} 个成员在线，会立即收到通知并从新位点继续。"),
        "No member is connected; members that join continue at the new offsets.": (
            "没有成员在线；之后加入的成员从新位点开始。"
        ),
        "Move the offsets": "确认重置",
        "This page only reads. Start its server with --allow-writes to move offsets.": (
            "本页面只读；以 --allow-writes 启动后可重置。"
        ),
        # Topics, brokers, doctor
        "topic": "主题",
        "There is no topic yet.": "还没有主题。",
        "messages ever": "累计消息",
        "read by": "消费者组",
        "Read by": "消费者组",
        "No group reads this topic.": "没有消费者组消费它。",
        "without RocketMQ's own topics": "不含 RocketMQ 系统主题",
        "with RocketMQ's own topics": "包含 RocketMQ 系统主题",
        "{n} a second": "每秒 {n} 条",
        "read the messages": "查看消息",
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
        "What the broker reports": "运行信息",
        "The broker has reported nothing.": "没有运行信息。",
        "name": "名称",
        "value": "值",
        "severity": "级别",
        "rule": "规则",
        "finding": "发现",
        "The server looks at {looked} of {groups}: at groups in trouble first, and at groups "
        "that a page shows.": ("{groups}中正在观察 {looked} 个：最需要关注的，以及页面上打开的。"),
        # Messages and dead letters
        "key or id": "Key 或消息 ID",
        "tag": "Tag",
        "offset": "位点",
        "from": "起始时间",
        "Show": "查看",
        "The newest message comes first; with an offset or a time, the oldest. This page joins "
        "no group and commits no offset.": (
            "最新的在前；指定位点或时间时从旧到新。不加入消费者组，也不提交位点。"
        ),
        "follow new messages": "跟随新消息",
        "stop following": "停止跟随",
        "Choose a topic.": "请选择主题。",
        "There is no message.": "没有消息。",
        "stored": "存储时间",
        "retries": "已重试次数",
        "Trace": "消息轨迹",
        "at": "时间",
        "what": "动作",
        "sent": "发送",
        "committed": "已提交",
        "rolled back": "已回滚",
        "consumed": "消费",
        "client": "客户端",
        "took": "耗时",
        "outcome": "结果",
        "earlier deliveries": "此前已投递次数",
        "There is no trace: producers and consumers trace only with trace on.": (
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
        "The message has no properties.": "没有属性。",
        "No group has dead letters.": "没有消费者组有死信。",
        "{id} was sent to its group again; the group receives the message in about 10 s.": (
            "{id} 已重新投递给其消费者组，约 10 秒后可消费。"
        ),
        "Send to the group again": "重新投递",
        "Send again": "重新投递",
        "No other group receives the message, and the dead letter stays in its topic.": (
            "其他消费者组不会收到；死信本身保留在原处。"
        ),
        "This page only reads. Start its server with --allow-writes to send dead letters again.": (
            "本页面只读；以 --allow-writes 启动后可重新投递。"
        ),
        # Simulator
        "The page simulates members that come and go, without processes and without a cluster. "
        "It calls the strategies that members call.": (
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
        "paused meanwhile": "期间暂停",
        "two owners meanwhile": "期间可能双份消费",
        "Moved: queues that staying members lost. Needlessly: moves that balance did not need. "
        "Skew: the largest share minus the smallest. Other columns: the sum over all events, or "
        "the worst event.": (
            "迁移：留下的成员失去的队列；不必要：超出均衡所需；负载差：最大份额减最小份额。"
            "其余为各事件之和或其中最差者。"
        ),
        # Lab
        "The Lab stages a failure with real processes on a cluster of its own and shows what "
        "the doctor finds. The Lab does not touch the cluster that this page watches.": (
            "在独立的集群上用真实进程重现故障，并由诊断找出原因；不影响本页面所观察的集群。"
        ),
        "End the drill": "结束演练",
        "Nothing is wrong any more: the group has recovered.": "已无异常：消费者组自行恢复。",
        "Effect": "影响",
        "event": "事件",
        "one owner each after": "恢复用时",
        "{sent} messages were sent, {consumed} consumed, {twice} of them more than once.": (
            "发送 {sent} 条，消费 {consumed} 条，其中 {twice} 条重复消费。"
        ),
        "Who held which queue": "队列归属变化",
        "The dashed line marks the event.": "虚线处是事件发生的时刻。",
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
        "one of three members is cut off: its process runs, but no data passes": (
            "三个成员之一断网：进程仍在运行，但收发不通"
        ),
        "the cut is healed": "网络恢复",
        "the listener of one of two members takes 5 s a message": (
            "两个成员之一的监听器每条消息耗时 5 秒"
        ),
    }
)
