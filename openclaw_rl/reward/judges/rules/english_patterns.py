"""Words and patterns of english.py: clauses of thanks, complaint and correction.

A pattern must match a whole clause, in lower case. Those with a subject require one that means the answer ("that",
"it", "your code").
"""

from __future__ import annotations

import re

from openclaw_rl.reward.judges.rules.signals import EMOJI, any_of

NOUN = (r"(?:answer|response|reply|result|output|code|solution|summary|explanation|translation|function|script|command"
         r"|fix|text|version|list|format|formatting|tone|style|example|link|date|number|point|one|poem|story|joke|title"
         r"|plan|regex|query|formula|math|calculation|order|spelling|grammar|name|conclusion|stuff|advice|suggestion"
         r"|job|work|info|information|idea|choice|way|try|line|step|part|section|sentence|paragraph|item|row|column"
         r"|value"
         r"|method|class|argument|parameter|package|import|loop|condition|variable|syntax|indentation|unit|sign|year"
         r"|address|price|total|sum|count|url|answer key)s?(?: \d+)?")
SUBJECT = (rf"(?:that|this|it|these|those|they|your (?:\w+ )??\w+|(?:the|this|that|these|those) (?:\w+ )??{NOUN}"
            rf"|{NOUN})")
IS = r"(?:'s|'re| is| are| was| were| looks?| sounds?| seems?| feels?| reads?)"
ADV = (r"(?:(?:still|just|all|so|very|really|completely|totally|quite|pretty|also|a bit|a little|kind of|kinda|way|far"
        r"|much|actually|simply|plain|even|again|now|absolutely|clearly|partly|mostly|entirely|somewhat|rather|almost"
        r"|probably|definitely|super|extremely|obviously|only|already|always|both|finally|truly|perfectly) ){0,5}")
BAD = (r"(?:wrong|incorrect|inaccurate|false|untrue|mistaken|useless|terrible|awful|horrible|bad|worse|worst|poor"
        r"|garbage|rubbish|nonsense|bullshit|crap|trash|unhelpful|unclear|confusing|misleading|irrelevant|broken"
        r"|outdated|incomplete|ridiculous|lazy|buggy|gibberish|disappointing|unreadable|unacceptable|pointless|boring"
        r"|silly|stupid|dumb|sloppy|messy|overkill|off topic|off-topic|made up|a mess|a mistake|an error|missing)")
GOOD = (r"(?:great|perfect|excellent|awesome|amazing|fantastic|wonderful|brilliant|nice|cool|neat|superb|good|correct"
         r"|right|beautiful|lovely|splendid|impressive|helpful|useful|clear|sweet|incredible|fabulous|accurate|spot on"
         r"|on point|well done|better|working|fun|funny|hilarious|clever|smart|insightful|informative|exact|elegant)")
WANTED = (rf"(?:{GOOD}|true|enough|relevant|valid|complete|what|how|the|quite|in|acceptable|readable|an answer|it$)")
TOO = (r"(?:long|short|verbose|wordy|brief|complicated|complex|technical|vague|general|generic|detailed|formal"
        r"|informal"
        r"|casual|simple|simplistic|hard|difficult|dense|long-winded|much|many|slow|flowery|dry|academic|abstract|basic"
        r"|advanced|cheesy|robotic|repetitive|superficial|shallow|aggressive|polite|broad|fancy|dramatic|little|few)")
MANNER_WORD = (
    r"(?:sentences?|words?|lines?|paragraphs?|bullets?|bullet[- ]?points?|points|markdown|lists?|tables?|json|yaml|csv"
    r"|xml|html|code|headings?|headers?|emojis?|plain text|text|jargon|terms|language|english|chinese|german|french"
    r"|spanish|japanese|italian|russian|korean|portuguese|characters|formatting|format|bold|asterisks|preamble|fluff"
    r"|intro|introduction|disclaimers?|explanations?|comments?|detail|details|short|shorter|brief|briefly|simple"
    r"|simpler"
    r"|simply|python|java|javascript|typescript|rust|go|steps?|tone|style|prose|numbers?|latex|links?|apologies"
    r"|filler)")
AGAIN = (r"(?:again|over|once more|harder|better|properly|differently|one more time|another way)")
OBJECT = (r"(?:it|that|this|them|those|these|me|everything|all|your \w+|the (?:answer|reply|text|response|code"
           r"|result|list))")
SAY = (r"(?:answer|reply|respond|explain|summari[sz]e|say|write|give|tell|put|describe|rewrite|rephrase|reword|do"
        r"|format"
        r"|present|phrase|word|express|speak|talk|type|output|return|print)")
BANNED = (r"(?:use|using|write|writing|include|including|add|adding|repeat|repeating|apologi\w+|explain|explaining"
           r"|give"
           r"|giving|show|showing|put|putting|say|saying|make|making|start|starting|end|ending|talk|talking|lecture"
           r"|lecturing|guess|guessing|format|formatting|answer|answering|be|being|ask|asking|change|changing|delete"
           r"|deleting|invent|inventing|output|print|send|call|calling|the|with the|it|that|this)")

FILLER = re.compile(
    r"^(?:(?:well|hm+|um+|uh|er+|ok|okay|so|hey|oh|ah+|aha|look|yeah|yes|yep|yup|and|then|now|haha\w*|lol|please|pls"
    r"|plz|dude"
    r"|bro|man|i think|i believe|i guess|i feel like|honestly|seriously|come on|sorry|wait|wow|omg|again|like"
    r"|(?:no|nope|nah)(?= (?:that|this|it|i|you|the|not|wrong|don't|please|use|try)\b)) +)+")
POLITE_END = re.compile(r"(?: (?:please|pls|plz|thanks|man|dude|bro|mate|sir|ok|okay|right now|again please))+$")
ASK_YOU = re.compile(r"^(?:can|could|would|will) you (?:please |maybe |just |perhaps |at least )*(?P<rest>.+)$")
ANOTHER_TASK = re.compile(r"\b(?:also|in (?:python|java|javascript|typescript|rust|go|code))\b")
NO_PLEASE = re.compile(r"no (?:more )?(\w+(?: \w+)?) (?:please|pls|plz)")
POLITE_START = re.compile(r"^(?:please |pls |plz |maybe |next time |i (?:need|want) you to |you (?:should|must"
                           r"|need to) )+")
SYMBOLS = "".join(EMOJI) + "\ufe0f🙂😊😀😂🤔😅 *_"
QUESTION_WORD = re.compile(
    r"^(?:what|who|whom|whose|which|when|where|why|how|is|are|was|were|do|does|did|has|have|can|could|would|will|shall"
    r"|should|may|might|am|if|whether)\b")

#: Neither approval nor complaint.
ACKNOWLEDGE = re.compile(
    r"(?:no (?:thanks?|thank you|thx|need|worries|problem|rush|hurry)(?! to)|never ?mind|that's (?:all|it)(?: for now)?"
    r"|nothing(?: else)?|ok|okay|i see|sure|continue|go on|next|more|good (?:question|morning|evening|night|luck"
    r"|to know)"
    r"|that's a (?:good|great|fair) (?:question|point)|too bad.*|not (?:sure|now|yet|really)|thanks in advance"
    r"|thank you in advance|right now|fine|that's too bad.*)")

PRAISE = any_of(
    r"(?:many |big |huge |a lot of )?(?:thanks|thank (?:you|u)|thankyou|thx|tysm|ty|cheers)(?! for nothing)\b.{0,60}",
    r"(?:much appreciated|(?:i )?(?:really |do |truly )*appreciate .{0,40}|i can't thank you enough)",
    rf"{ADV}{GOOD}(?: {NOUN})?(?: (?:bot|man|indeed|now|thanks|again|to me))*",
    rf"(?:a )?{ADV}{GOOD} (?:{NOUN})",
    rf"(?:{SUBJECT}{IS}|looks|sounds|seems) {ADV}(?:the |so )?{ADV}{GOOD}(?:(?: (?:for|to|as|that|now|so|at|in"
    rf"|of|and"
    r"|too|enough|indeed|again|already|thanks|than|man|about|this time)\b.{0,60})| ?\W+)?",
    rf"(?:{SUBJECT}{IS}|looks|sounds|seems) {ADV}(?:a |an |some |such a ){ADV}{GOOD} {NOUN}(?: .{{0,40}})?",
    rf"(?:{SUBJECT} |everything |all )?{ADV}(?:works?|worked|working|runs|compiles)(?: {ADV[:-1]})?"
    r"(?: (?:now|fine|great|well|perfectly|for me|like a charm|as expected|again|too|flawlessly|beautifully|nicely))*",
    rf"{SUBJECT} {ADV}(?:did|does) the trick", rf"{SUBJECT} {ADV}(?:solve[sd]?|fixe[sd]|help(?:s|ed))\b.{{0,40}}",
    r"(?:problem|issue|bug|that's|it's|all) (?:solved|fixed|resolved)", r"(?:solved|fixed|resolved)(?: it)?",
    rf"(?:{SUBJECT}{IS} )?{ADV}(?:exactly|precisely|just) (?:what|as|how|the|like|it|that)\b.{{0,60}}",
    r"exactly|precisely",
    rf"(?:i )?{ADV}(?:love|like|loved|liked|enjoyed) (?:it|this|that|these|your .+|how you .+"
    rf"|the {NOUN})(?: .{{0,20}})?",
    r"(?:i )?(?:now )?(?:got it|get it|understand|understood)(?: now)?",
    r"(?:that |it |this )?(?:now )?makes (?:a lot of |perfect |more |total |so much |much more "
    r"|a lot more )?sense(?: now)?",
    r"you(?:'re| are) (?:absolutely |totally |completely )?(?:right|correct|the best|amazing|great|awesome"
    r"|an? (?:lifesaver|genius|star|legend|hero)|so (?:helpful|smart|good|kind))\b.{0,30}",
    r"you (?:nailed|rock|rule|saved|solved|fixed|helped|made my day|did (?:great|well|it)|got it)\b.{0,30}",
    r"(?:it |that |this )?couldn't be better", r"(?:i )?(?:can't complain|have no complaints)", r"no complaints",
    r"i(?:'m| am) (?:very |so |really |quite |more than )*(?:happy|satisfied|pleased|impressed|grateful)\b.{0,30}",
    r"(?:lgtm|bravo|bingo|yay|hooray|woohoo|kudos|well done|good bot|nailed it|you did it|hats off)\b.{0,20}",
    rf"{SUBJECT}?(?:{IS} )?(?:{ADV})?not (?:too |so |at all |half )?bad(?: at all)?",
)

COMPLAINT = any_of(
    rf"{ADV}{BAD}(?: {NOUN}| bot| again)?", rf"(?:what )?(?:a |an )?{ADV}{BAD} {NOUN}",
    rf"{SUBJECT}{IS} {ADV}(?:a |an |the )?{ADV}{BAD}\b.*",
    rf"(?:isn't|wasn't|aren't) (?:that|this|it) {ADV}{BAD}\b.*",
    rf"(?:{SUBJECT}{IS} )?{ADV}not {ADV}{WANTED}\b.*",
    rf"(?:that|this|{SUBJECT}) (?:isn't|wasn't|aren't|weren't|ain't|can't be|cannot be) "
    rf"{ADV}(?:a |an )?(?:{WANTED}|(?<=t a )\w+|(?<=t an )\w+|(?<=be )\w+)\b.*",
    rf"{SUBJECT} {ADV}(?:doesn't|does not|didn't|did not|don't|do not|won't|can't|cannot|couldn't) {ADV}(?:work"
    rf"|compile"
    r"|run|help|answer|make|match|fit|address|solve|fix|look|sound|seem|rhyme|exist|parse|build|load|follow|say|explain"
    r"|contain|include|return|print|handle|cover|mention|add up)\b.*",
    rf"(?:{SUBJECT} )?(?:is |are |'s )?still (?:not|doesn't|does not|didn't|isn't|don't|wrong|broken|fail\w*"
    rf"|crash\w*|getting|gets?"
    r"|the same|no|using|uses|too|gives?|throws?|nothing|incorrect|missing|error\w*)\b.*",
    r"i(?:'m| am)? still (?:getting|get|seeing|see|have|confused|lost|can't)\b.*",
    r"(?:the )?same (?:error|problem|issue|result|thing|mistake|output)\b.*",
    rf"{SUBJECT} {ADV}(?:fails?|failed|crash(?:es|ed)?|breaks?|broke|throws?|threw|hangs?|errors?"
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
)
NOT_COMPLAINT = re.compile(
    r"(?:.* )?not (?:too |so |that |at all )?(?:bad|wrong|terrible|a problem|necessary|an issue|a big deal)\b"
    r"|you never know"
    r"|.*\b(?:didn't|don't) have to\b|what")

CORRECTION = any_of(
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
    rf" ?(?:\w+ )?(?:{MANNER_WORD}|stuff|answers?|it|this|that|these|those)\b.*",
    r"you (?:\w+ )?(?:should have|shouldn't have|were supposed to|keep|kept) .*",
    rf"{SUBJECT} (?:was|were) supposed to .*",
    r"(?:i'd|i would) (?:prefer|rather|have preferred) .*", r"i prefer .*",
    rf"(?:{SUBJECT} )?(?:would|could) (?:be|have been) (?:better|nicer|clearer|shorter|simpler)\b.*",
    rf"(?:{SUBJECT}{IS} )?better without .*",
)
#: "Actually, it was 1914": the word is followed by a fact that the answer got wrong.
FACT = re.compile(r"(?:it|that|this|he|she|they|there|the \w+)(?:'s|'re| is| was| are| were| has| have| did| does)\b.+")
ACTUALLY = re.compile(
    rf"actually (?P<a>{FACT.pattern})"
    r"|(?P<b>(?:it|that|this|he|she|they)(?:'s|'re| is| was| were) actually .+)")

DIRECTIVE = any_of(
    rf"{SAY}(?: {OBJECT})*(?: back| again)? (?:in|with|as|without|using|more|less|only|like|shorter|longer"
    rf"|differently"
    r"|better|again|properly|briefly|concisely|simply|clearly|directly|simpler|yes or no)\b.*",
    rf"(?:make|keep) (?:it|that|this|them|your \w+|the {NOUN})\b.*",
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
    r"(?:just )?answer (?:the|my) question\b.{0,60}", r"stick to the (?:question|topic|point)\b.*",
    r"(?:short|brief|concise|simple|one-line|one-word|one word) (?:answers?|reply|replies|version)(?: only)?",
    r"(?:get )?(?:straight )?to the point",
    rf"(?:in|as|with|without|only|using|just)\b(?: [\w'-]+){{0,5}} {MANNER_WORD}\b(?: [\w'-]+){{0,4}}",
    rf"no (?:more )?(?:\w+ )?{MANNER_WORD}\b(?: [\w'-]+){{0,3}}",
    rf"(?:don't|do not|dont|stop|never|quit) (?:ever )?{BANNED}\b.*",
    rf"(?:avoid|skip|drop|remove|leave out|cut) (?:out )?(?:the|all|those|that|this|it|any|your|{MANNER_WORD})\b.*",
    r"(?:just|only|simply) (?:give|tell|answer|say|show|write|the|a|one|yes|list|send|print|output|return|name|plain"
    r"|text|code)\b.*",
    rf"(?:try|do|say|answer|write|start|explain|check)(?: {OBJECT})* {AGAIN}\b.*", r"again",
    rf"(?:just )?{MANNER_WORD}(?: only| instead)?", r"something (?:less|more|else|different|\w+er)\b.*",
    r"i (?:\w+ )?(?:don't|do not) like .+", r"i dislike .+",
    rf"(?:redo|retry|regenerate|rewrite|rephrase|reword|reformulate|shorten|simplify|fix|correct|revise|undo|revert)"
    rf"(?: {OBJECT}\b.*)?",
    r"(?:change|replace) .+ (?:to|with|by) .+",
    r"(?:use|try|do|make|write|give|put|call|say|choose|take)\b.* instead\b.*", r"use .* rather than .*",
    r".{1,40} instead",
    r"(?:try|use|pick|choose|give me|show me) (?:something (?:else|different)|a different|another (?:way|approach"
    r"|style|tone))\b.*",
    rf"(?:{SUBJECT}|it|he|she) (?:should|must|needs? to|has to|have to|shouldn't|should not) .*",
    r"use (?!(?:the|this|my) following)(?:[\w'-]+ ?){1,5}",
    r"(?:one|two|three|\d+|a single|max(?:imum)? \w+|at most \w+) (?:sentence|word|line|paragraph"
    r"|bullet)s?\b(?: [\w'-]+){0,4}",
)

ABOUT_SOMETHING = re.compile(r"(?:explain|say|tell|describe|summari[sz]e)\b.*\b(?:how|what|why|who|when"
                              r"|where) \w+ \w+")
FORGOT = re.compile(r"you (?:\w+ )?(?P<how>forgot|missed|left out|skipped|ignored|overlooked)(?: to (?P<do>.+)"
                     r"| (?P<what>.+))?")
DID_NOT = re.compile(r"you (?:\w+ )?(?:didn't|did not|haven't|never|failed to) (?:even |really |actually )?(?P<do>.+)")
ANTONYM = (
    (r"long|verbose|wordy|long-winded|detailed|much (?:text|detail|information)|many words", "Answer more briefly"),
    (r"short|brief|superficial|shallow|little detail", "Answer in more detail"),
    (r"complicated|complex|technical|hard|difficult|dense|academic|abstract|advanced", "Use simpler words"),
    (r"vague|general|generic|broad", "Be more specific"),
    (r"formal|robotic|dry", "Be less formal"), (r"informal|casual", "Be more formal"),
    (r"simple|simplistic|basic", "Go deeper"), (r"repetitive", "Don't repeat yourself"),
)
TOO_PATTERN = re.compile(rf"(?:.*\b)?too {ADV}(?P<how>\w+\b.*)")
TOO_ANCHORED = re.compile(
    rf"(?:{SUBJECT}{IS} |there(?:'s| is| are) )?{ADV}too {ADV}(?:{TOO}\b.*"
    r"|(?!bad|late|true|right|funny|early|well|kind|soon)\w+(?: for (?:me|us))?)")
MANY_BULLETS = re.compile(rf"(?:.*\b)?too (?P<how>(?:many|much) {MANNER_WORD})\b.*")
GOT_ERROR = re.compile(
    r"i(?:'m)? (?:now )?(?:get|got|getting|see) (?:an?|this|the(?: same)?|another)? ?(?:\w+ ){0,2}\w*(?:error|exception"
    r"|traceback)\b(?!.*\b(?:another|other|my|different)\b).*")
OWN = re.compile(
    r"here(?:'s| is| are) |this is my |below is |i (?:wrote|have (?:a|an|this|some|the)|made|built|was wrong|work"
    r"|bought)\b"
    r"|i(?:'m| am) (?:working|writing|building|trying)\b|my (?!question|point|request)\w+ (?:\w+ ){0,3}(?:is|are|was"
    r"|has|have"
    r"|says?|said|does|doesn't|did|didn't|won't|keeps?|looks?|gives?|crashed|broke|wants?)\b|consider |given |suppose ")
TASK = re.compile(
    r"(?:write|tell|show|explain|translate|give|make|create|list|find|search|help|describe|compare|calculate|compute"
    r"|solve"
    r"|generate|build|implement|add|summari[sz]e|suggest|recommend|plan|draft|convert|draw|run|open|read|check|book"
    r"|send"
    r"|set|let's|let us|i (?:want|need|would like|'d like) to|i'd like|i have|i am|i'm|my|name|define|continue|do)\b")
UNWANTED = re.compile(
    r"i (?:really |just |simply )?(?:don't (?:want|need|like)|do not (?:want|need|like)|hate|dislike) "
    rf"(?P<what>(?!it\b|this|that|these|those|your|you|to|when)(?:[\w'-]+ ){{0,3}}{MANNER_WORD}\b(?: [\w'-]+){{0,4}})")
