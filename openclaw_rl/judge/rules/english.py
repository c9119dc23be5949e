"""What an English clause says about the answer before it.

Patterns are anchored at the clause's start and want a subject that means the answer ("that", "it", "your code"), so
that a task which merely mentions errors or bad things ("write a review: the food was terrible") says nothing.
"""

from __future__ import annotations

import re

from openclaw_rl.judge.rules.signals import EMOJI, Kind, Signal
from openclaw_rl.judge.text import Clause

_NOUN = (r"(?:answer|response|reply|result|output|code|solution|summary|explanation|translation|function|script|command"
         r"|fix|text|version|list|format|formatting|tone|style|example|link|date|number|point|one|poem|story|joke|title"
         r"|plan|regex|query|formula|math|calculation|order|spelling|grammar|name|conclusion|stuff|advice|suggestion"
         r"|job|work|info|information|idea|choice|way|try|line|step|part|section|sentence|paragraph|item|row|column"
         r"|value"
         r"|method|class|argument|parameter|package|import|loop|condition|variable|syntax|indentation|unit|sign|year"
         r"|address|price|total|sum|count|url|answer key)s?(?: \d+)?")
_SUBJECT = (rf"(?:that|this|it|these|those|they|your (?:\w+ )??\w+|(?:the|this|that|these|those) (?:\w+ )??{_NOUN}"
            rf"|{_NOUN})")
_IS = r"(?:'s|'re| is| are| was| were| looks?| sounds?| seems?| feels?| reads?)"
_ADV = (r"(?:(?:still|just|all|so|very|really|completely|totally|quite|pretty|also|a bit|a little|kind of|kinda|way|far"
        r"|much|actually|simply|plain|even|again|now|absolutely|clearly|partly|mostly|entirely|somewhat|rather|almost"
        r"|probably|definitely|super|extremely|obviously|only|already|always|both|finally|truly|perfectly) ){0,5}")
_BAD = (r"(?:wrong|incorrect|inaccurate|false|untrue|mistaken|useless|terrible|awful|horrible|bad|worse|worst|poor"
        r"|garbage|rubbish|nonsense|bullshit|crap|trash|unhelpful|unclear|confusing|misleading|irrelevant|broken"
        r"|outdated|incomplete|ridiculous|lazy|buggy|gibberish|disappointing|unreadable|unacceptable|pointless|boring"
        r"|silly|stupid|dumb|sloppy|messy|overkill|off topic|off-topic|made up|a mess|a mistake|an error|missing)")
_GOOD = (r"(?:great|perfect|excellent|awesome|amazing|fantastic|wonderful|brilliant|nice|cool|neat|superb|good|correct"
         r"|right|beautiful|lovely|splendid|impressive|helpful|useful|clear|sweet|incredible|fabulous|accurate|spot on"
         r"|on point|well done|better|working|fun|funny|hilarious|clever|smart|insightful|informative|exact|elegant)")
_WANTED = (rf"(?:{_GOOD}|true|enough|relevant|valid|complete|what|how|the|quite|in|acceptable|readable|an answer|it$)")
_TOO = (r"(?:long|short|verbose|wordy|brief|complicated|complex|technical|vague|general|generic|detailed|formal"
        r"|informal"
        r"|casual|simple|simplistic|hard|difficult|dense|long-winded|much|many|slow|flowery|dry|academic|abstract|basic"
        r"|advanced|cheesy|robotic|repetitive|superficial|shallow|aggressive|polite|broad|fancy|dramatic|little|few)")
_MANNER_WORD = (
    r"(?:sentences?|words?|lines?|paragraphs?|bullets?|bullet[- ]?points?|points|markdown|lists?|tables?|json|yaml|csv"
    r"|xml|html|code|headings?|headers?|emojis?|plain text|text|jargon|terms|language|english|chinese|german|french"
    r"|spanish|japanese|italian|russian|korean|portuguese|characters|formatting|format|bold|asterisks|preamble|fluff"
    r"|intro|introduction|disclaimers?|explanations?|comments?|detail|details|short|shorter|brief|briefly|simple"
    r"|simpler"
    r"|simply|python|java|javascript|typescript|rust|go|steps?|tone|style|prose|numbers?|latex|links?|apologies"
    r"|filler)")
_AGAIN = (r"(?:again|over|once more|harder|better|properly|differently|one more time|another way)")
_OBJECT = (r"(?:it|that|this|them|those|these|me|everything|all|your \w+|the (?:answer|reply|text|response|code"
           r"|result|list))")
_SAY = (r"(?:answer|reply|respond|explain|summari[sz]e|say|write|give|tell|put|describe|rewrite|rephrase|reword|do"
        r"|format"
        r"|present|phrase|word|express|speak|talk|type|output|return|print)")
_BANNED = (r"(?:use|using|write|writing|include|including|add|adding|repeat|repeating|apologi\w+|explain|explaining"
           r"|give"
           r"|giving|show|showing|put|putting|say|saying|make|making|start|starting|end|ending|talk|talking|lecture"
           r"|lecturing|guess|guessing|format|formatting|answer|answering|be|being|ask|asking|change|changing|delete"
           r"|deleting|invent|inventing|output|print|send|call|calling|the|with the|it|that|this)")

_FILLER = re.compile(
    r"^(?:(?:well|hm+|um+|uh|er+|ok|okay|so|hey|oh|ah+|aha|look|yeah|yes|yep|yup|and|then|now|haha\w*|lol|please|pls"
    r"|plz|dude"
    r"|bro|man|i think|i believe|i guess|i feel like|honestly|seriously|come on|sorry|wait|wow|omg|again|like"
    r"|(?:no|nope|nah)(?= (?:that|this|it|i|you|the|not|wrong|don't|please|use|try)\b)) +)+")
_POLITE_END = re.compile(r"(?: (?:please|pls|plz|thanks|man|dude|bro|mate|sir|ok|okay|right now|again please))+$")
_ASK_YOU = re.compile(r"^(?:can|could|would|will) you (?:please |maybe |just |perhaps |at least )*(?P<rest>.+)$")
_ANOTHER_TASK = re.compile(r"\b(?:also|in (?:python|java|javascript|typescript|rust|go|code))\b")
_NO_PLEASE = re.compile(r"no (?:more )?(\w+(?: \w+)?) (?:please|pls|plz)")
_POLITE_START = re.compile(r"^(?:please |pls |plz |maybe |next time |i (?:need|want) you to |you (?:should|must"
                           r"|need to) )+")
_SYMBOLS = "".join(EMOJI) + "\ufe0f🙂😊😀😂🤔😅 *_"
_QUESTION_WORD = re.compile(
    r"^(?:what|who|whom|whose|which|when|where|why|how|is|are|was|were|do|does|did|has|have|can|could|would|will|shall"
    r"|should|may|might|am|if|whether)\b")

#: Said when the answer is wanted neither way.
_ACKNOWLEDGE = re.compile(
    r"(?:no (?:thanks?|thank you|thx|need|worries|problem|rush|hurry)(?! to)|never ?mind|that's (?:all|it)(?: for now)?"
    r"|nothing(?: else)?|ok|okay|i see|sure|continue|go on|next|more|good (?:question|morning|evening|night|luck"
    r"|to know)"
    r"|that's a (?:good|great|fair) (?:question|point)|too bad.*|not (?:sure|now|yet|really)|thanks in advance"
    r"|thank you in advance|right now|fine|that's too bad.*)")

_PRAISE = [re.compile(p) for p in (
    r"(?:many |big |huge |a lot of )?(?:thanks|thank (?:you|u)|thankyou|thx|tysm|ty|cheers)(?! for nothing)\b.{0,60}",
    r"(?:much appreciated|(?:i )?(?:really |do |truly )*appreciate .{0,40}|i can't thank you enough)",
    rf"{_ADV}{_GOOD}(?: {_NOUN})?(?: (?:bot|man|indeed|now|thanks|again|to me))*",
    rf"(?:a )?{_ADV}{_GOOD} (?:{_NOUN})",
    rf"(?:{_SUBJECT}{_IS}|looks|sounds|seems) {_ADV}(?:the |so )?{_ADV}{_GOOD}(?:(?: (?:for|to|as|that|now|so|at|in"
    rf"|of|and"
    r"|too|enough|indeed|again|already|thanks|than|man|about|this time)\b.{0,60})| ?\W+)?",
    rf"(?:{_SUBJECT}{_IS}|looks|sounds|seems) {_ADV}(?:a |an |some |such a ){_ADV}{_GOOD} {_NOUN}(?: .{{0,40}})?",
    rf"(?:{_SUBJECT} |everything |all )?{_ADV}(?:works?|worked|working|runs|compiles)(?: {_ADV[:-1]})?"
    r"(?: (?:now|fine|great|well|perfectly|for me|like a charm|as expected|again|too|flawlessly|beautifully|nicely))*",
    rf"{_SUBJECT} {_ADV}(?:did|does) the trick", rf"{_SUBJECT} {_ADV}(?:solve[sd]?|fixe[sd]|help(?:s|ed))\b.{{0,40}}",
    r"(?:problem|issue|bug|that's|it's|all) (?:solved|fixed|resolved)", r"(?:solved|fixed|resolved)(?: it)?",
    rf"(?:{_SUBJECT}{_IS} )?{_ADV}(?:exactly|precisely|just) (?:what|as|how|the|like|it|that)\b.{{0,60}}",
    r"exactly|precisely",
    rf"(?:i )?{_ADV}(?:love|like|loved|liked|enjoyed) (?:it|this|that|these|your .+|how you .+"
    rf"|the {_NOUN})(?: .{{0,20}})?",
    r"(?:i )?(?:now )?(?:got it|get it|understand|understood)(?: now)?",
    r"(?:that |it |this )?(?:now )?makes (?:a lot of |perfect |more |total |so much |much more "
    r"|a lot more )?sense(?: now)?",
    r"you(?:'re| are) (?:absolutely |totally |completely )?(?:right|correct|the best|amazing|great|awesome"
    r"|an? (?:lifesaver|genius|star|legend|hero)|so (?:helpful|smart|good|kind))\b.{0,30}",
    r"you (?:nailed|rock|rule|saved|solved|fixed|helped|made my day|did (?:great|well|it)|got it)\b.{0,30}",
    r"(?:it |that |this )?couldn't be better", r"(?:i )?(?:can't complain|have no complaints)", r"no complaints",
    r"i(?:'m| am) (?:very |so |really |quite |more than )*(?:happy|satisfied|pleased|impressed|grateful)\b.{0,30}",
    r"(?:lgtm|bravo|bingo|yay|hooray|woohoo|kudos|well done|good bot|nailed it|you did it|hats off)\b.{0,20}",
    rf"{_SUBJECT}?(?:{_IS} )?(?:{_ADV})?not (?:too |so |at all |half )?bad(?: at all)?",
)]

_COMPLAINT = [re.compile(p) for p in (
    rf"{_ADV}{_BAD}(?: {_NOUN}| bot| again)?", rf"(?:what )?(?:a |an )?{_ADV}{_BAD} {_NOUN}",
    rf"{_SUBJECT}{_IS} {_ADV}(?:a |an |the )?{_ADV}{_BAD}\b.*",
    rf"(?:isn't|wasn't|aren't) (?:that|this|it) {_ADV}{_BAD}\b.*",
    rf"(?:{_SUBJECT}{_IS} )?{_ADV}not {_ADV}{_WANTED}\b.*",
    rf"(?:that|this|{_SUBJECT}) (?:isn't|wasn't|aren't|weren't|ain't|can't be|cannot be) "
    rf"{_ADV}(?:a |an )?(?:{_WANTED}|(?<=t a )\w+|(?<=t an )\w+|(?<=be )\w+)\b.*",
    rf"{_SUBJECT} {_ADV}(?:doesn't|does not|didn't|did not|don't|do not|won't|can't|cannot|couldn't) {_ADV}(?:work"
    rf"|compile"
    r"|run|help|answer|make|match|fit|address|solve|fix|look|sound|seem|rhyme|exist|parse|build|load|follow|say|explain"
    r"|contain|include|return|print|handle|cover|mention|add up)\b.*",
    rf"(?:{_SUBJECT} )?(?:is |are |'s )?still (?:not|doesn't|does not|didn't|isn't|don't|wrong|broken|fail\w*"
    rf"|crash\w*|getting|gets?"
    r"|the same|no|using|uses|too|gives?|throws?|nothing|incorrect|missing|error\w*)\b.*",
    r"i(?:'m| am)? still (?:getting|get|seeing|see|have|confused|lost|can't)\b.*",
    r"(?:the )?same (?:error|problem|issue|result|thing|mistake|output)\b.*",
    rf"{_SUBJECT} {_ADV}(?:fails?|failed|crash(?:es|ed)?|breaks?|broke|throws?|threw|hangs?|errors?"
    rf"|returns? (?:nothing|none"
    r"|null|an error|the wrong)|panics?|segfaults?|freezes|does nothing|gives? (?:me )?(?:an?"
    r"|the(?: same)?)? ?(?:\w+ ){0,3}\w*(?:error|exception)"
    r"|raises?)\b.*",
    r"(?:doesn't|does not|didn't|won't|can't) (?:even )?(?:work|compile|run|help|make (?:any )?sense|match|fit)\b.*",
    r"there(?:'s| is) no such .*", r"(?:that's |this is |it's )?(?:the )?wrong \w+(?: \w+)?",
    r"you (?:\w+ )?\w+ (?:the|a|an) wrong .*", r"(?:that|this)(?:'s| is) not .+", r"it(?:'s| is| was) not \d.*",
    r"you(?:'re| are| were) (?:\w+ )?(?:wrong|mistaken|not (?:listening|answering|helping|making|right|correct"
    r"|following)"
    r"|confus\w+|repeating|contradicting|useless|stupid|missing|hallucinating|lying|making|an? idiot|dumb)\b.*",
    r"(?:are|can) you (?:stupid|dumb|kidding|serious|blind|deaf|even (?:read|listen)\w*)\b.*",
    r"you (?:\w+ )?(?:misunderstood|misread|hallucinated|invented|contradict\w*|repeated|messed|screwed|failed)\b.*",
    r"you (?:\w+ )?(?:got (?:it|that|this|the \w+) wrong|made (?:it|that|this|things) up|(?:can't|cannot) even)\b.*",
    r"you (?:\w+ )?made (?:an?|some|several|the same|two|another) (?:\w+ )?(?:mistakes?|errors?|typos?)\b.*",
    r"why (?:do|are|did|does|is) (?:you|it|this|that|your \w+) (?:keep|always|still|again|ignor\w+|repeat\w*)\b.*",
    r"why (?:didn't|won't|can't) (?:you|it)\b.*", r"why don't you (?:just |ever )?(?:answer|listen|follow|read)\b.*",
    r"(?:wtf|ugh+|meh|argh+|fail|what the (?:hell|heck|fuck).*|thanks for nothing|for fuck's sake|ffs|boo|yikes"
    r"|no luck.*)",
    r"i(?:'m| am) (?:\w+ )?(?:not (?:happy|satisfied|impressed|convinced)|disappointed|confused|lost|frustrated"
    r"|annoyed)\b.*",
    r"i (?:\w+ )?(?:don't|do not|can't|cannot|didn't) (?:\w+ )?(?:get|understand|follow|read)(?: (?:it|this|that"
    r"|anything"
    r"|a word|your \w+|you|the (?:answer|explanation)))?",
    r"huh|what\?*",
)]
_NOT_COMPLAINT = re.compile(
    r"(?:.* )?not (?:too |so |that |at all )?(?:bad|wrong|terrible|a problem|necessary|an issue|a big deal)\b"
    r"|you never know"
    r"|.*\b(?:didn't|don't) have to\b|what")

_CORRECTION = [re.compile(p) for p in (
    r"(?:like |as )?i (?:already |just |specifically |clearly |literally |explicitly )+(?:said|asked|told|mentioned"
    r"|wrote)\b.*",
    r"(?:like|as) i (?:said|asked|told you|mentioned)\b.*",
    r"i said .+",
    r"i (?:asked (?:you )?(?:for|about|how|what|which|when|where|why|who|whether|if|in)|told you)\b.*",
    r"i(?:'m| am| was) (?:asking|looking|hoping|expecting|talking) (?:you )?(?:for|about|to)\b.*",
    r"i (?:actually |really |only |just )*(?:meant|mean (?:the|not|in|a|how|what|why)|expected|needed (?!to)"
    r"|wanted (?!to (?:ask|know)))"
    r"\b.*",
    r"i (?:only|just) (?:want|need)(?!ed| to) .*",
    r"i (?:\w+ )?(?:didn't|did not|never) (?:ask|asked|mean|meant|want|wanted|say|said|tell|told)\b.*",
    rf"i (?:\w+ )?(?:don't (?:want|need|like|care)|hate|dislike|can't stand) (?:it|this|that|these|those|any|all|your"
    rf"|the|a|an|so)?"
    rf" ?(?:\w+ )?(?:{_MANNER_WORD}|stuff|answers?|it|this|that|these|those)\b.*",
    r"you (?:\w+ )?(?:should have|shouldn't have|were supposed to|keep|kept) .*",
    rf"{_SUBJECT} (?:was|were) supposed to .*",
    r"(?:i'd|i would) (?:prefer|rather|have preferred) .*", r"i prefer .*",
    rf"(?:{_SUBJECT} )?(?:would|could) (?:be|have been) (?:better|nicer|clearer|shorter|simpler)\b.*",
    rf"(?:{_SUBJECT}{_IS} )?better without .*",
)]
#: "Actually, it was 1914": what comes after the word is a fact that the answer has wrong.
FACT = re.compile(r"(?:it|that|this|he|she|they|there|the \w+)(?:'s|'re| is| was| are| were| has| have| did| does)\b.+")
_ACTUALLY = re.compile(
    rf"actually (?P<a>{FACT.pattern})"
    r"|(?P<b>(?:it|that|this|he|she|they)(?:'s|'re| is| was| were) actually .+)")

_DIRECTIVE = [re.compile(p) for p in (
    rf"{_SAY}(?: {_OBJECT})*(?: back| again)? (?:in|with|as|without|using|more|less|only|like|shorter|longer"
    rf"|differently"
    r"|better|again|properly|briefly|concisely|simply|clearly|directly|simpler|yes or no)\b.*",
    rf"(?:make|keep) (?:it|that|this|them|your \w+|the {_NOUN})\b.*",
    r"keep (?:\w+ )?(?:it )?(?:short|brief|simple|concise)\b.*",
    r"(?:be|get) (?:a (?:bit|little) )?(?:more|less|brief|concise|specific|precise|polite|direct|clear|honest|short"
    r"|careful"
    r"|quick|to the point|straight)\b.*",
    r"(?:a (?:bit|little) )?more (?:details?|detailed|specific|concise|precise|formal|casual|direct|polite|info"
    r"|information|depth"
    r"|context|natural|friendly|readable)\b.{0,30}",
    r"(?:less|fewer) .{1,40}",
    r"(?:much |even |a bit |a little )?(?:shorter|longer|simpler|briefer|clearer)(?: answer| version| words"
    r"| sentences)?s?",
    r"(?:short|brief|concise|simple|one-line|one-word|one word) (?:answers?|reply|replies|version)(?: only)?",
    r"(?:get )?(?:straight )?to the point",
    rf"(?:in|as|with|without|only|using|just)\b(?: [\w'-]+){{0,5}} {_MANNER_WORD}\b(?: [\w'-]+){{0,4}}",
    rf"no (?:more )?(?:\w+ )?{_MANNER_WORD}\b(?: [\w'-]+){{0,3}}",
    rf"(?:don't|do not|dont|stop|never|quit) (?:ever )?{_BANNED}\b.*",
    rf"(?:avoid|skip|drop|remove|leave out|cut) (?:out )?(?:the|all|those|that|this|it|any|your|{_MANNER_WORD})\b.*",
    r"(?:just|only|simply) (?:give|tell|answer|say|show|write|the|a|one|yes|list|send|print|output|return|name|plain"
    r"|text|code)\b.*",
    rf"(?:try|do|say|answer|write|start|explain|check)(?: {_OBJECT})* {_AGAIN}\b.*", r"again",
    rf"(?:just )?{_MANNER_WORD}(?: only| instead)?", r"something (?:less|more|else|different|\w+er)\b.*",
    r"i (?:\w+ )?(?:don't|do not) like .+", r"i dislike .+",
    rf"(?:redo|retry|regenerate|rewrite|rephrase|reword|reformulate|shorten|simplify|fix|correct|revise|undo|revert)"
    rf"(?: {_OBJECT}\b.*)?",
    r"(?:change|replace) .+ (?:to|with|by) .+",
    r"(?:use|try|do|make|write|give|put|call|say|choose|take)\b.* instead\b.*", r"use .* rather than .*",
    r".{1,40} instead",
    r"(?:try|use|pick|choose|give me|show me) (?:something (?:else|different)|a different|another (?:way|approach"
    r"|style|tone))\b.*",
    rf"(?:{_SUBJECT}|it|he|she) (?:should|must|needs? to|has to|have to|shouldn't|should not) .*",
    r"use (?!(?:the|this|my) following)(?:[\w'-]+ ?){1,5}",
    r"(?:one|two|three|\d+|a single|max(?:imum)? \w+|at most \w+) (?:sentence|word|line|paragraph"
    r"|bullet)s?\b(?: [\w'-]+){0,4}",
)]

_ABOUT_SOMETHING = re.compile(r"(?:explain|say|tell|describe|summari[sz]e)\b.*\b(?:how|what|why|who|when"
                              r"|where) \w+ \w+")
_FORGOT = re.compile(r"you (?:\w+ )?(?P<how>forgot|missed|left out|skipped|ignored|overlooked)(?: to (?P<do>.+)"
                     r"| (?P<what>.+))?")
_DID_NOT = re.compile(r"you (?:\w+ )?(?:didn't|did not|haven't|never|failed to) (?:even |really |actually )?(?P<do>.+)")
_ANTONYM = (
    (r"long|verbose|wordy|long-winded|detailed|much (?:text|detail|information)|many words", "Answer more briefly"),
    (r"short|brief|superficial|shallow|little detail", "Answer in more detail"),
    (r"complicated|complex|technical|hard|difficult|dense|academic|abstract|advanced", "Use simpler words"),
    (r"vague|general|generic|broad", "Be more specific"),
    (r"formal|robotic|dry", "Be less formal"), (r"informal|casual", "Be more formal"),
    (r"simple|simplistic|basic", "Go deeper"), (r"repetitive", "Don't repeat yourself"),
)
_TOO_PATTERN = re.compile(rf"(?:.*\b)?too {_ADV}(?P<how>\w+\b.*)")
_TOO_ANCHORED = re.compile(
    rf"(?:{_SUBJECT}{_IS} |there(?:'s| is| are) )?{_ADV}too {_ADV}(?:{_TOO}\b.*"
    r"|(?!bad|late|true|right|funny|early|well|kind|soon)\w+(?: for (?:me|us))?)")
_MANY_BULLETS = re.compile(rf"(?:.*\b)?too (?P<how>(?:many|much) {_MANNER_WORD})\b.*")


def classify(clause: Clause, answer_has_code: bool = False) -> Signal | None:
    """What the clause says about the answer; None when it says nothing."""
    text = _FILLER.sub("", clause.text).rstrip(_SYMBOLS)
    if _ACKNOWLEDGE.fullmatch(text):
        return Signal(Kind.ACKNOWLEDGEMENT)
    text = _POLITE_END.sub("", text)
    if not text:
        return None
    if without := _NO_PLEASE.fullmatch(clause.text):
        return Signal(Kind.DIRECTIVE, "without " + _tail(clause.original, clause.text, without[1]), manner=True)
    own = _tail(clause.original, clause.text, text)
    if text in ("no", "nope", "nah", "no no", "noo", "not really"):
        return Signal(Kind.NEGATION)
    if not clause.question and (actually := _ACTUALLY.fullmatch(text)):
        return Signal(Kind.CORRECTION, _tail(own, text, actually["a"] or text))
    return (_asking(clause, text, own) or _negative(text, own, answer_has_code) or _directive(text, own)
            or _positive(clause, text))


def _asking(clause: Clause, text: str, own: str) -> Signal | None:
    """A request to change the answer that is put as a question."""
    ask = _ASK_YOU.fullmatch(text)
    if ask and not _ANOTHER_TASK.search(text):
        rest = ask["rest"].removeprefix("not ") if ask["rest"].startswith("not ") else ask["rest"]
        signal = _directive(rest, _tail(own, text, rest))
        if signal and rest != ask["rest"]:
            return Signal(signal.kind, f"Don't {signal.phrase}")
        return signal
    return None


def _negative(text: str, own: str, answer_has_code: bool) -> Signal | None:
    if _NOT_COMPLAINT.match(text):
        return None
    if too := (_TOO_ANCHORED.fullmatch(text) and _TOO_PATTERN.fullmatch(text)) or _MANY_BULLETS.fullmatch(text):
        how = too["how"].strip()
        if re.match(r"many|much", how) and not re.match(r"much (?:text|detail|information)|many words", how):
            return Signal(Kind.CORRECTION, "Use fewer " + how.split(maxsplit=1)[1] if " " in how else "", fallback=True)
        phrase = next((say for pattern, say in _ANTONYM if re.match(rf"(?:{pattern})\b", how)),
                      f"Be less {how.split()[0]}")
        return Signal(Kind.CORRECTION, phrase, fallback=True)
    if forgot := _FORGOT.fullmatch(text):
        rest = forgot["do"] or forgot["what"] or ""
        if rest in ("", "it", "that", "me", "my question", "the question"):
            return Signal(Kind.CORRECTION, "Answer my question" if "question" in rest else "")
        return Signal(Kind.CORRECTION, f"Don't forget {'to ' if forgot['do'] else ''}{_tail(own, text, rest)}")
    if (did_not := _DID_NOT.fullmatch(text)) and not text.startswith(("you never know", "you didn't have")):
        rest = _tail(own, text, did_not["do"])
        infinitive = not text.startswith("you never") and "haven't" not in text
        return Signal(Kind.CORRECTION, rest if infinitive else own)
    if any(pattern.fullmatch(text) for pattern in _CORRECTION):
        return Signal(Kind.CORRECTION, own)
    if any(pattern.fullmatch(text) for pattern in _COMPLAINT):
        return Signal(Kind.COMPLAINT)
    if answer_has_code and _GOT_ERROR.fullmatch(text):
        return Signal(Kind.COMPLAINT)
    return None


_GOT_ERROR = re.compile(
    r"i(?:'m)? (?:now )?(?:get|got|getting|see) (?:an?|this|the(?: same)?|another)? ?(?:\w+ ){0,2}\w*(?:error|exception"
    r"|traceback)\b(?!.*\b(?:another|other|my|different)\b).*")


def _directive(text: str, own: str) -> Signal | None:
    rest = _POLITE_START.sub("", text)
    own = _tail(own, text, rest)
    if re.search(r"\bas well\b|\balso\b|\banother one\b", rest) or _ABOUT_SOMETHING.search(rest):
        return None
    for pattern in _DIRECTIVE:
        if pattern.fullmatch(rest):
            break
    else:
        return None
    if rest.startswith("no "):
        return Signal(Kind.DIRECTIVE, "without" + own[2:], manner=True)
    if re.match(r"(?:in|as|with|without|using)\b", rest):
        return Signal(Kind.DIRECTIVE, own, manner=True)
    if re.match(r"(?!make|keep|be)(?:\w+ ){0,2}(?:shorter|longer|simpler|briefer|clearer)\b", rest):
        return Signal(Kind.DIRECTIVE, f"Make the answer {own}")
    return Signal(Kind.DIRECTIVE, own)


def _positive(clause: Clause, text: str) -> Signal | None:
    if clause.question and _QUESTION_WORD.match(text):
        return None
    if re.search(r"\b(?:would|could|might|if|unless|only|sometimes|at first|partially)\b", text) and not re.match(
            r"thank|exactly|couldn't|it couldn't", text):
        return None
    return Signal(Kind.PRAISE) if any(pattern.fullmatch(text) for pattern in _PRAISE) else None


def asks_something(clause: Clause) -> bool:
    """The clause looks like a request: a question, or it starts with a verb that orders work."""
    text = _POLITE_START.sub("", _FILLER.sub("", clause.text))
    return bool(_QUESTION_WORD.match(text) or _TASK.match(text) or clause.question)


_TASK = re.compile(
    r"(?:write|tell|show|explain|translate|give|make|create|list|find|search|help|describe|compare|calculate|compute"
    r"|solve"
    r"|generate|build|implement|add|summari[sz]e|suggest|recommend|plan|draft|convert|draw|run|open|read|check|book"
    r"|send"
    r"|set|let's|let us|i (?:want|need|would like|'d like) to|i'd like|i have|i am|i'm|my|name|define|continue|do)\b")


def introduces(clause: Clause) -> bool:
    """The clause presents something of the user's own, so that what follows speaks of that and not of the answer."""
    return bool(_OWN.match(_FILLER.sub("", clause.text)))


_OWN = re.compile(
    r"here(?:'s| is| are) |this is my |below is |i (?:wrote|have (?:a|an|this|some|the)|made|built|was wrong|work"
    r"|bought)\b"
    r"|i(?:'m| am) (?:working|writing|building|trying)\b|my (?!question|point|request)\w+ (?:\w+ ){0,3}(?:is|are|was"
    r"|has|have"
    r"|says?|said|does|doesn't|did|didn't|won't|keeps?|looks?|gives?|crashed|broke|wants?)\b|consider |given |suppose ")


def _tail(original: str, before: str, after: str) -> str:
    """The part of `original` that `after` is of `before` (its lower-case twin)."""
    at = before.find(after)
    if at < 0 or len(original) != len(before):
        return after
    return original[at:at + len(after)]
