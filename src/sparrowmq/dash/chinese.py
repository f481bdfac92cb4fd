"""The page's texts in Chinese, by their English. The terms are those of RocketMQ's community."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CHINESE_COUNTS: Mapping[str, str] = MappingProxyType({"queue": "个队列", "row": "行"})

CHINESE: Mapping[str, str] = MappingProxyType(
    {
        # Around every page
        "Overview": "总览",
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
    }
)
