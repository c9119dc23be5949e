"""Hints from complaints in which no rule knows an instruction: what the user says that the answer should have been.

Of a message that the classifier is sure is a complaint, the first of these that it has:

- a correction or a wish ("It's Canberra", "spiders have eight"): the user's sentence, without the blame before it;
- an order ("tone it down"), likewise;
- something missing ("where's Jupiter?") or overdone ("why so formal?", "sounds like a robot"): put as an order;
- in English a fault of the answer ("it crashes on an empty list"): as what to avoid.

Scorn, mere blame and quotations of the answer give none.
"""

from __future__ import annotations

import re

from openclaw_rl.reward.judges.rules.english_patterns import NOUN
from openclaw_rl.reward.judges.rules.hints import LIMIT, clean, safe, sentence
from openclaw_rl.reward.judges.rules.words import read
from openclaw_rl.reward.judges.text import content, has_cjk, words

_LONGEST = 160
_SHOULD = re.compile(
    r"(?:(?:no|nope|wait|actually|hm+|um+|sorry|surely|well)\b[, .]*)*(?:it(?:'s| is| was| should| must| has to"
    r"| needs to)|there (?:are|should be)|(?:he|she)(?:'s| is| was) (?:my|our|the|an?) [^,]{2,40}, not"
    r"|isn't it|the (?:right "
    r"|correct )?answer is|i think it's|i(?:'m| am) (?:pretty|fairly|quite)"
    r" sure|my (?:name|budget|car|version) is|i'm an?|i'm (?:on|in|vegan|vegetarian|allergic|lactose|afraid of)"
    r"|i said|i meant|i asked (?:you )?(?:for|about|to)"
    r"|i (?:only|just|actually)? ?(?:want|need)(?:ed)?|we (?:need|use|don't|have)|i (?:don't|can't) (?:have|own|eat"
    r"|drink)"
    r"|leave out|without|with|in|as)\b.{2,140}"
    r"|(?!(?:that|this|those|these)\b)[^,.!?\n]{1,40}, not [^,.!?\n]{1,40}[.!]?"
    r"|(?:不对?[，,]?|错了[，,]?)*(?:应该|应为|明明|其实|我(?:要|问|说|叫|姓|学|用|是|只要|想要|没有|不吃|不喝|不看)的?"
    r"|我们?(?:这儿|家|没有|用)|是|不是|别|不要|不用|去掉|改成|换成|用|按|以).{1,60}|像.{1,30}[那一]样"
    r"|.{1,20}(?:才对|才是)[。!！]?", re.IGNORECASE)
#: What a sentence that matches _SHOULD says without saying anything.
_EMPTY = re.compile(
    r"(?:it|there|i)(?:'s| is| was|'m| am| are| were) (?:\w+ly )?(?:\w+ing\b(?! (?:for|about))|gone|dead|pronounced"
    r"|spelled|generic|different\w*|empty|even|the wrong|not|no|wrong|all|it|what|so|just|too|"
    r"still|the (?:same|opposite|problem|point)|an? (?:joke|mess|lie|guess|mistake|problem)|nonsense|rubbish|terrible"
    r"|bad"
    r"|worse|awful|useless|better|off|sad|ridiculous|confus\w+|disappointed|lost|done|out|back|afraid|wrong\w*)\b"
    r"|(?:is|是|不是)(?:吗|吧|的|啊|这样|这个|那个|真的|假的|不是|的吧)|(?:应该|其实)(?:不|没)|.{0,6}(?:不对|错了|不行)吧?"
    r"|(?:just |only )?as you (?:said|told)|in (?:my|your|other) (?:life|dreams|words)|with (?:that|this)|as (?:if"
    r"|usual|i|always|before)|我(?:说|要)的?不是|[按照]你|按钮|[别不](?:要|再)?(?:闹|逗|弄|说|瞎|乱|装|搞|骗|忽悠|扯|敷衍|胡|问).{0,3}$|是(?:跑|真|假|猜"
    r"|编|在|不)",
    re.IGNORECASE)
_ORDER = re.compile(
    r"(?:please |just |then )*(?:make|keep|use|drop|cut|leave|add|put|tone|write|mention|include|skip|remove|explain"
    r"|start"
    r"|end|sign|call|trim|tighten|spice|stick|name|give|show|say|begin|replace|swap|change|move|boil|flesh|spell|round"
    r"|don't|do not|no|stop|avoid|less|fewer|more|shorter|longer) .{3,120}"
    r"|.{0,8}(?:点儿?|一些|一点)(?:的|吧|嘛|啊|行吗|好吗|行不行|可以吗)?|(?:少|多)(?:用|写|说|讲|给|来|加|放|点|些).{1,40}"
    r"|(?:删|去|砍|改|换|加|写|给|说|讲|做|列|直接|带上|押|收|展开|用|控制).{1,40}", re.IGNORECASE)
_NO_ORDER = re.compile(
    r".* if anything|(?:make|give|show|say|explain|start|no|stop|more|call|use|don't|do not) (?:it|me|up|me that|that"
    r"|this|so|no|idea|way"
    r"|use|sense|over|again|thanks|please|lie|kidding|off|mistakes?|problem)?[.!]*"
    r"|(?:no|more) (?:it|that|this|i|you|one|good|real|part|single|fruit|\w+ (?:is|has|would|says?|will))\b.*"
    r"|.{0,4}(?:差|少|早|晚|快|慢|糟|错|怪|靠谱|认真|用心|专业|聪明)(?:了)?(?:一?点|些).*|一点.{0,3}|有点.*|给我.{0,2}"
    r"|(?:改|写|说|讲|做|换|加|用)(?:错|反|得|的|完|了|坏|过).*|说(?:好|了|到|来).*|给(?:谁|我)?看.*|讲(?:真|道理).*"
    r"|改回.{0,3}|就.*|.*(?:了|没|会).{0,2}|.*(?:不行|怎么).*|换(?:个人|我来|人).*|.*(?:什么|吗|啥|谁|哪|呢)",
    re.IGNORECASE)
_MISSING = re.compile(
    r"(?:and |so |but )?where(?:'s| is| are|'re) (?:the |my |your )?(?P<en>[\w' -]{3,40})"
    r"|(?:and |but )?what about (?:the |my )?(?P<about>[\w' -]{3,40})|and (?:the |my )(?P<and>[\w' -]{3,40})"
    r"|(?P<zh>[^，。？！,.?!]{1,14}?)(?:部分)?(?:呢|在哪里?|去哪了)", re.IGNORECASE)
_NOT_MISSING = re.compile(r"you|it|that|this|we|i|he|she|the point|sense|end|there|here|now|from|are|you .*|them"
                          r"|答案|你|我"
                          r"|后面|前面|然后|所以|为什么|怎么|.*[我你他还在要了是不会就那这人].*", re.IGNORECASE)
_OVERDONE = re.compile(
    r"why (?:are you|is (?:it|this|that)|so|do you sound|does (?:it|this) sound) (?:all )?(?:so )?(?P<en>\w{4,16})"
    r"(?: about it)?|(?:干嘛|为什么|怎么)(?:说|写)?(?:得)?(?:这么|那么|如此)(?P<zh>.{1,6})", re.IGNORECASE)
_LIKE = re.compile(
    r"(?:it |that |this |you )?(?:all )?(?:sounds?|reads?|looks?|feels?) (?:\w+ )?(?P<en>like .{3,60})"
    r"|(?:这)?(?:听起来|看着|读着|念着|读起来)?(?:太|有点)?像(?P<zh>[^，。？！]{2,20})", re.IGNORECASE)
_FAULT = re.compile(
    r"(?:(?:it|that|this|these|those|there|nothing|(?:the|your|half of the) (?:\w+ ){0,2}?(?:"
    rf"{NOUN}|page|box|table|menu|link|quotes|heading|bold|font|picture|image|ending|beginning|arrows|axis|letters"
    r"|brackets|indentation|recipe|sauce|dough|query|button|file|field|test|tests|build|loop|rhyme|metre|verse|names?"
    r"|colou?rs?|headings|rest|other \w+|first|last|second|third))(?:'s|'re|'ve)?|you (?:\w+ )?(?:swapped|mixed"
    r"|removed|renamed|deleted|changed|misspelled"
    r"|counted|forgot|described|left|skipped|only|stopped|told)) [^?.!;]{6,110}[.!]?", re.IGNORECASE)
#: What makes a sentence no fault: a demand, or a comparison that doesn't say with what.
_VAGUE = re.compile(r"there must|what i (?:asked|wanted|meant)|\b(?:has|have|needs?) to\b|\b(?:than|as) before",
                    re.IGNORECASE)
#: Words of blame: a fault has some beside them.
_BLAME = content(
    "add after again ago all answer anybody anyone anything apart aren't around at bad before beside best better "
    "boss broken can't change changed close completely confused confusing couldn't crossed cry day didn't doesn't "
    "don't embarrassing enough error even everybody everyone everything exactly fail fails false far find first "
    "fix fixed found get give given good got great guess half happen happened happens happy hasn't haven't he "
    "help helped helpful her him his hurt hurts important incorrect isn't issue it's job joke keep keeps know "
    "late lie like literally little look looked lot made main make many match matches mess message minute missing "
    "mistake most much must myth never new no nobody nonsense not nothing number numbers off old one only "
    "opposite other part parts people person point problem professor question quite read reply request right "
    "rubbish said same second see sense she simply slightest solve solved sound still stuff sure teacher tell "
    "tells that's them there there's they're thing think third this's three time told too totally touch true two "
    "up us use used useless very wasn't waste way whatsoever won't word words work working works worse worst "
    "wrong you're")
_BLAME_ZH = re.compile(r"[这那它你我的是了不没对错吧啊呢嘛也都还就在有和跟说给看懂行用太很真"
                       r"完全根本样个回答问题什么怎么]|重来|重新|再|代码|结果"
                       r"|有问题|没用|答案")
_SCORN = re.compile(
    r"\b(?:lol|haha\w*|wow|genius|einstein|bravo|great|brilliant|amazing|impressive|perfect|lovely"
    r"|fantastic"
                    r"|congratulations|seriously|kidding|joke|funny|hilarious|stupid|idiot|useless|nonsense|rubbish"
                    r"|toaster"
                    r"|kindergarten|waste|thanks|wish|oh)\b|[?？]{2}|🙄|呵呵|哈哈|无语|垃圾|什么鬼|离谱|厉害|佩服|真行|可真|真有|恭喜|笑|岂不是|谢谢"
                    r"|小学|废物|滚|神仙", re.IGNORECASE)
_BUT = re.compile(r"\bbut\b[ ,]*|但是?|不过|可是", re.IGNORECASE)
#: "No change whatsoever" is no wish; "no, ..." and wishes ("no emojis please") are the rules'.
_NONE = re.compile(r"\s*no \w", re.IGNORECASE)
_PARTS = re.compile(r"(?<=[.!?;。！？；])\s*|,\s+(?:and )?|，|(?<!\s)\s+[-–—]\s+|: ", re.IGNORECASE)


def from_complaint(message: str, answer: str) -> str:
    """A hint from a complaint, see above; empty if there is none in it. In the language of the message."""
    if _NONE.match(message) or len(message) > LIMIT or "\n" in message.strip():
        return ""
    text = clean(" ".join(message.split()))
    if not text or len(text) > _LONGEST or _SCORN.search(text):
        return ""
    text = _BUT.split(text)[-1]  # the complaint of "nice, but too long"
    pieces = [text, *(piece for piece in _PARTS.split(text) if piece and piece != text)]
    said = answer.lower()
    pieces = [piece for piece in pieces if piece.lower().rstrip(".。") not in said and read(piece, "", "").score <= 0]
    for make in (_correction, _order, _missing, _overdone, _fault):
        for piece in pieces:
            if (hint := make(clean(piece).strip("… "), piece.rstrip().endswith(("?", "？")))) and safe(hint):
                return sentence(hint)
    return ""


def _correction(text: str, asks: bool) -> str:
    if asks or "?" in text or "？" in text or not _SHOULD.fullmatch(text) or _EMPTY.match(text):
        return ""
    return text if says_something(text) else ""


def _order(text: str, asks: bool) -> str:
    return text if not asks and "?" not in text and _ORDER.fullmatch(text) and not _NO_ORDER.fullmatch(text) else ""


def _missing(text: str, asks: bool) -> str:
    found = _MISSING.fullmatch(text.rstrip("?？"))
    what = found and (found["en"] or found["about"] or found["and"] or found["zh"])
    if not found or not what or _NOT_MISSING.fullmatch(what.strip()):
        return ""
    return f"不要漏了{what}" if found["zh"] else f"Don't leave out the {what}" if "the " in text else (
        f"Don't leave out {what}")


def _overdone(text: str, asks: bool) -> str:
    text = text.rstrip("?？")
    if found := _OVERDONE.fullmatch(text):
        if found["zh"]:
            return f"不要这么{found['zh']}"
        return "" if found["en"].lower() in ("much", "many", "hard", "difficult", "wrong", "stupid") else (
            f"Be less {found['en']}")
    if found := _LIKE.fullmatch(text):
        return f"不要像{found['zh']}" if found["zh"] else f"It should not sound {found['en']}"
    return ""


def _fault(text: str, asks: bool) -> str:
    if asks or not _FAULT.fullmatch(text) or _VAGUE.search(text) or not says_something(text):
        return ""
    return f"Avoid this: {text[0].lower() if text[1:2].islower() else text[0]}{text[1:]}"


def says_something(text: str) -> bool:
    """Whether a sentence has words beside those of blame."""
    if has_cjk(text):
        return len(_BLAME_ZH.sub("", "".join(words(text)))) >= 2
    return bool(content(text) - _BLAME)
