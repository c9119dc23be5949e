"""Weighted patterns of the requests that agent frameworks and chat programs make for themselves.

The patterns match wordings that such programs have in common (titles, tags, follow-ups, search queries, summaries,
memory, heartbeats), in English and Chinese. None of them decides alone; see housekeeping.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from openclaw_rl.runtime.tagged import Tagged


@dataclass(frozen=True, slots=True)
class Signal:
    """A pattern that counts as evidence."""

    name: str  #: for people
    weight: float
    pattern: re.Pattern[str]


def _signal(name: str, weight: float, *patterns: str) -> Signal:
    return Signal(name, weight, re.compile("|".join(f"(?:{pattern})" for pattern in patterns),
                                           re.IGNORECASE | re.MULTILINE | re.DOTALL))


_TALK = (r"(?:conversations?|chats?(?: (?:logs?|history))?|dialog(?:ue)?s?|discussions?|sessions?|threads?"
         r"|transcripts?|exchanges?|chat[_ ]history|interactions?)")
_TALK_ZH = r"(?:对话|会话|聊天|消息|历史记录|上下文)"
_NEAR = r"[^.!?\n]{0,90}?"
_NEAR_ZH = r"[^。!?\n]{0,25}?"
_NAME = r"(?:title|name|headline|slug|label|topic)"
_SUMMARISE = r"(?:summari[sz]\w*|summary|condens\w+|compress\w*|compact|recap)"

#: Tasks. One of them counts: the heaviest, of several the first.
TASKS: dict[str, Signal] = {
    "heartbeat": _signal(
        "asks for a heartbeat", 0.55,
        r"\bheart ?beat (?:check|poll|prompt|tick)",
        r"\[heartbeat\]",
        r"\b(?:read|check|review|see|follow) HEARTBEAT\.md\b",
        r"\bsystem wake-?up\b",
        r"心跳.{0,12}(?:检查|轮询|HEARTBEAT)",
        r"(?:检查|读取|查看).{0,6}HEARTBEAT\.md"),
    "title": _signal(
        "asks to title the conversation", 0.5,
        rf"\b{_NAME}{_NEAR}\b(?:{_TALK}|user'?s? (?:first )?(?:message|request|query|prompt)s?)\b",
        rf"\b{_TALK}\b{_NEAR}\b(?:into|in|with|for) a (?:\w+[ -]){{0,3}}{_NAME}",
        rf"\b{_TALK} an? (?:\w+ ){{0,3}}(?:name|title)\b",
        rf"\b(?:name|title|label) (?:this|the) {_TALK}\b",
        r"\b(?:title|thread name|session name|chat name|slug) generator\b",
        r"\bgenerates? (?:\w+ ){0,3}conversation titles?\b",
        r"\bnew (?:conversation )?topic\b[^\n]{0,120}\btitle\b",
        rf"{_TALK_ZH}{_NEAR_ZH}(?:标题|命名|[取起]个?名|名称|名字)",
        rf"(?:标题|命名|名称){_NEAR_ZH}{_TALK_ZH}"),
    "tags": _signal(
        "asks to label the conversation", 0.5,
        rf"\b(?:tags?|categor\w+|labels?|keywords?|emoji|mood|language){_NEAR}\b{_TALK}\b",
        rf"\b(?:classify|categori[sz]e|tag|label) (?:the |this )?{_TALK}\b",
        rf"{_TALK_ZH}{_NEAR_ZH}(?:标签|分类|关键词)",
        rf"(?:标签|分类){_NEAR_ZH}{_TALK_ZH}"),
    "follow-ups": _signal(
        "asks for what the user may say next", 0.55,
        r"\b(?:questions?|replies|prompts?|messages?|follow-?ups?)\b[^.\n]{0,40}\b(?:the )?users? (?:\w+ ){0,2}?"
        r"(?:could|can|may|might|would|will|wants?|to ask)\b",
        r"\bsuggested (?:replies|responses|prompts|questions)\b[^.\n]{0,30}\b(?:chat|user)",
        r"\bfollow-?up (?:questions|prompts)\b[^.\n]{0,80}\b(?:chat history|conversation)",
        r"用户[^。\n]{0,10}(?:可能|接下来|继续|想)[^。\n]{0,10}(?:问|追问|提问|说)"),
    "query": _signal(
        "asks to turn the conversation into a search query", 0.55,
        r"\b(?:rephrase|rewrite|condense|reformulate|transform)\b[^.\n]{0,60}\b(?:follow[- ]?up|questions?|messages?"
        r"|quer(?:y|ies)|input)\b[^\n]{0,120}(?:stand-?alone|stands alone|search quer|search engine|vector|retriev)",
        r"\b(?:last|latest|follow[- ]?up|user'?s?)\b[^.\n]{0,30}\b(?:message|question|input)\b[^.\n]{0,60}\b"
        r"(?:(?:as|into) a (?:search|standalone|retrieval) (?:query|question)|formulate a standalone)",
        r"\b(?:search|retrieval|web) (?:quer(?:y|ies)|terms|keywords)\b[^\n]{0,120}\b(?:chat history|conversation"
        r"|last message|database)",
        r"\b(?:chat history|conversation|user'?s? (?:last |latest )?(?:message|question|query))\b[^\n]{0,80}\b"
        r"(?:search (?:quer(?:y|ies)|terms)|needs? (?:a )?(?:web )?search|web search|find relevant documents)",
        r"\bif a (?:web )?search (?:is needed|would|should|could)\b",
        r"改写[^。\n]{0,20}(?:检索|独立|查询|搜索)",
        r"是否需要[^。\n]{0,6}(?:联网|搜索|检索)",
        r"历史记录[^。\n]{0,40}(?:检索词|搜索词|查询)"),
    "summary": _signal(
        "asks to summarise the conversation", 0.5,
        rf"\b{_SUMMARISE}\b{_NEAR}\b{_TALK}\b",
        rf"\b{_TALK}\b[^.!?\n]{{0,40}}?\b(?:summari[sz]\w*|summary)\b",
        r"\b(?:messages? above|above messages?|messages? so far)\b[^.\n]{0,60}\bsummar",
        r"\bsummar\w+\b[^.\n]{0,40}\b(?:lines of conversation|new messages|messages above)",
        r"\b(?:handoff|hand-off|rolling|checkpoint) summary\b",
        r"\bprompt for continuing\b",
        r"\bcontext checkpoint\b",
        r"\bupdate the summary\b",
        r"\bsummari[sz]e (?:the )?(?:assistant|ai)'?s? (?:last|latest|previous) (?:reply|response|message|answer)",
        rf"(?:总结|概括|压缩|摘要|归纳|提炼){_NEAR_ZH}{_TALK_ZH}",
        rf"{_TALK_ZH}{_NEAR_ZH}(?:总结|概括|压缩|摘要|归纳|提炼)"),
    "memory": _signal(
        "asks to keep memories", 0.5,
        r"\b(?:extract|identify|note|collect|organi[sz]e|store|save|record|list)\w*\b[^.\n]{0,80}\b(?:facts?|memor(?:y|ies)"
        r"|preferences|entities|notes|information)\b[^.\n]{0,80}\b(?:about the user|the user|conversations?|exchange"
        r"|remember\w*|future|long-term|durabl\w+|memory)\b",
        r"\bdurable memor",
        r"\blasting notes\b|\bworth (?:keeping|saving|remembering)\b",
        r"\b(?:update|maintain) (?:the )?(?:user'?s? )(?:profile|memory|persona)\b",
        r"\bmemory (?:flush|turn|extraction)\b",
        r"\b(?:existing|current|old) memor(?:y|ies)\b[^\n]{0,120}\b(?:ADD|UPDATE|DELETE)\b",
        r"\bsession reflection\b",
        r"记忆(?:提取|整理|管理)",
        r"(?:提取|更新|记录|整理)[^。\n]{0,20}用户(?:的)?[^。\n]{0,8}(?:偏好|事实|画像|信息|特征)"),
    "assessment": _signal(
        "asks to assess the conversation or to route it", 0.5,
        rf"\b(?:decide|determine|rate|score|judge|evaluate|assess|analy[sz]e|detect|did)\b[^.\n]{{0,60}}\b"
        rf"(?:the |this )(?:{_TALK}|assistant'?s? (?:last )?(?:reply|response|answer)|last user message)\b",
        r"\bwhich (?:agent|role|speaker|tool) should\b",
        r"\bnext (?:speaker|agent|role)\b",
        r"\b(?:autocomplet\w+) system\b",
        r"\bwhat the assistant (?:just )?did\b",
        r"\bif this message (?:starts|indicates|begins)\b",
        r"(?:判断|评估|分析)[^。\n]{0,12}(?:上述|以下|这段|该)?(?:对话|会话)"),
}

#: A text without any of these words, in lower case, requests no task. Looking for them is much cheaper.
TASK_WORDS = (
    "conversation", "chat", "dialog", "discussion", "session", "thread", "transcript", "exchange", "interaction",
    "message", "request", "quer", "prompt", "heartbeat", "heart beat", "wake", "topic", "generator", "user", "search",
    "summar", "context", "memor", "notes", "worth", "agent", "role", "speaker", "tool", "autocomplet", "assistant",
    "follow-up", "followup", "对话", "会话", "聊天", "消息", "历史记录", "上下文",
    "用户", "改写", "搜索", "联网", "检索", "记忆", "心跳")

#: Manners of the request; each counts once. Negative weights are evidence against.
MANNERS: tuple[Signal, ...] = (
    _signal("demands nothing but the result", 0.25,
            r"\b(?:only|nothing but|just|solely|exactly|strictly)\b[^.\n]{0,25}\b(?:titles?|names?|json|summary"
            r"|quer(?:y|ies)|tags?|slug|output|return|reply|respond|answer|emoji|text|sentence|code|list|role)\b",
            r"\b(?:output|return|reply|respond|answer|provide|give)\b[^.\n]{0,30}\b(?:only|nothing but|nothing else"
            r"|just|exactly|solely)",
            r"\b(?:no|without|any) (?:other|extra|additional|quotes?|quotation marks|explanations?|preamble|numbering"
            r"|punctuation|full stop|introduction)\b",
            r"\bplain text only\b",
            r"\band nothing else\b",
            r"(?:只|仅)(?:需)?(?:输出|返回|回复|回答|给出)",
            r"直接(?:返回|输出|给出|回复)",
            r"不要(?:解释|输出|编号|引号|标点|任何|有)",
            r"不需要(?:包含)?标点",
            r"不得有多余"),
    _signal("wants a machine to read the answer", 0.2,
            r"\bJSON\b",
            r"\bXML\b",
            r"\{\s*\"\w+\"\s*:",
            r"\bcomma[- ]separated\b",
            r"\bone per line\b",
            r"\b(?:TRUE|yes) or (?:FALSE|no)\b",
            r"每行一个",
            r"逗号分隔"),
    _signal("limits the length", 0.15,
            r"\b\d+\s*(?:-|–|to|or)\s*\d+[- ](?:words?|characters?|sentences?|broad)",
            r"\b(?:at most|max(?:imum)?(?: of)?|under|fewer than|up to|within|below|limited to|than)\s+\w+\s+"
            r"(?:words?|characters?|tokens?|sentences?|queries|memories|paragraphs?)",
            r"\b[\w-]+[- ]words?[- ]or[- ](?:less|fewer)",
            r"\bin (?:one|two) sentences?\b",
            r"\b\d+ words\b",
            r"\b\d+ characters max\b",
            r"(?<!\d)\d+\s*个?(?:字|词|token|汉字|标签|问题)",
            r"不超过"),
    _signal("is a template", 0.25,
            r"(?:^#{2,3} [^\n]*(?:\n(?!#{2,3} )[^\n]*)*\n?){3,}",
            r"<(?:analysis|summary|chat_history)>",
            r"^(?:previous|current) summary:.{0,3000}?^(?:new lines|messages|new messages)\b",
            r"\binput\s*:.{0,1000}?\boutput\s*:",
            r"^(?:standalone question|new summary|title|summary|queries|answer|query)\s*:\s*\Z"),
    _signal("has a field for what it is about", 0.15,
            r"^(?:request|(?:the )?user(?:'s)?(?: first)? (?:message|query|input|request)|first message|message|query"
            r"|input|follow[- ]?up(?: input| question)?|conversation|chat history|memory|facts|对话内容|原问题"
            r"|历史记录)\s*[:：]"),
    _signal("speaks of user and assistant as of others", 0.2,
            r"\b(?:the|an?) (?:user|assistant|human|ai|ai (?:coding )?assistant)(?:'s)?\b",
            r"\bbetween (?:an? |the )?(?:user|human|operator) and\b",
            r"用户(?:的|可能|接下来|想|画像|与)"),
    _signal("speaks of contexts and other models", 0.3,
            r"\bcontext (?:window|limit|length|checkpoint|continuity)|compact(?:ion|ed)\b|\bolder (?:messages|parts)\b",
            r"\btruncat\w+|\btoken (?:limit|budget)",
            r"\b(?:another|next|other) (?:model|llm|assistant|agent)\b|\bhand-?off\b|\bresume the (?:task|work)\b",
            r"\bwithout losing\b|\bcontinu\w+ (?:the )?(?:work|task|prompt|development)\b|\bcontinuation prompt\b",
            r"\bfuture (?:conversations?|prompts?|interactions?|turns)\b|\blater (?:prompts?|turns)\b",
            r"\bas (?:context|memory)\b|\bcontext for\b|\bstarting point for\b",
            r"\bnew session will\b|\bwill not have access\b",
            r"后续(?:模型|对话|任务|轮)|上下文(?:窗口|即将|超|长度|限制)|以后的对话"),
    _signal("asks for a list of sections about the work", 0.2,
            r"(?:^[ \t]*(?:\d+[.)、]|[-*•]|#{1,3})[^\n]*(?:\n|\Z)){4,}"),
    _signal("forbids to take part", 0.25,
            r"\b(?:do not|don't|never) (?:call|use)(?: any)? tools?\b",
            r"\b(?:do not|don't|never) (?:continue|answer|respond to|reply to)\b",
            r"不要(?:继续对话|回答用户|调用工具)"),
    _signal("demands a word that is no answer", 0.5,
            r"\b(?:reply|respond|answer|return|output)s?\b[^.\n]{0,30}\b"
            r"(?-i:HEARTBEAT_OK|NO_REPLY|[A-Z]{2,}_(?:OK|REPLY|NEEDED|OP))\b",
            r"(?:回复|返回|输出|回答)[^。\n]{0,6}(?-i:HEARTBEAT_OK|NO_REPLY)",
            r"\breturn not_needed\b"),
    _signal("says what to do when there is nothing", 0.2,
            r"\bif (?:there is |there's )?nothing\b",
            r"\bwhen there is nothing\b",
            r"\bempty (?:array|list|when)\b",
            r"\bif none\b|\bor NONE\b",
            r"如果没有|没有则"),
    _signal("asks for a text about prompts", -0.4,
            r"\b(?:write|draft|review|improve|show|design)\b[^.\n]{0,30}\bprompts?\b"),
)

#: A person's own words in the requesting paragraph: evidence against, as is a question.
OWN_WORDS = _signal("speaks of the one who asks", -0.4,
                    r"\b(?:I|I'm|I've|I'd|I'll|my|me|mine|we|our team)\b(?!\.\w)",
                    r"帮我|给我|我的|我(?:想|要|有|在|是|们|把|写|喜欢)")
QUESTION = _signal("is a question", -0.25, r"[?？]\s*\Z")

#: Speakers in the lines of a quoted conversation.
SPEAKER = re.compile(r"^[\s>|\[<(*#\"'-]{0,8}(?:(?P<user>user|human|用户|人类)"
                     r"|(?P<assistant>assistant|ai|bot|model|response|助手|助理))[\]>)*\"']{0,4}\s{0,2}[:：]",
                     re.IGNORECASE | re.MULTILINE)
#: A conversation quoted between tags ...
TAGGED = Tagged("chat_history", "conversation", "transcript", "history", "chat", "messages", "dialogue", "chat_log",
                attributes="[^>]{0,80}", ignore_case=True)
#: ... or as JSON: its beginning, and its end.
JSON_BEGIN = re.compile(r"\[\s*\{[^\[\]]{0,40}\"role\"\s*:\s*\"(?:user|human|assistant)\"")
JSON_END = re.compile(r"\}\s*\]")
