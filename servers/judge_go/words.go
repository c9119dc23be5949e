package main

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// What a user's next words say of the answer before them, clause by clause, in English and Chinese. A pattern has to
// match from a clause's start, so that a task which merely speaks of bad things says nothing.

const (
	this = `(?:that|this|it|these|those|they|(?:your|the) (?:\w+ )?\w+)`
	is   = `(?:'s|'re| is| are| was| were| looks?| sounds?| seems?)`
	adv  = `(?: (?:still|just|all|so|very|really|completely|totally|quite|also|a bit|kind of|way|much|actually|simply|again))*`
	bad  = `(?:wrong|incorrect|inaccurate|false|untrue|useless|terrible|awful|bad|poor|nonsense|unhelpful|confusing|misleading|irrelevant|broken|incomplete|rubbish|garbage|off topic|an error|a mistake|not (?:what|right|correct|true|helpful|useful|good|quite|working|it\b|enough|the|relevant|how))`
	good = `(?:great|perfect|excellent|awesome|amazing|fantastic|wonderful|brilliant|nice|good|correct|right|helpful|useful|clear|exactly|better|spot on|just what|fine now)`
	too  = `too (?:long|short|verbose|wordy|brief|complicated|complex|technical|vague|general|generic|detailed|formal|simple|hard|much text|many words|slow|dense)`
)

var (
	filler = regexp.MustCompile(`^(?:(?:well|hm+|um+|ok|okay|so|hey|oh|ah|look|yeah|yes|yep|and|then|now|please|sorry|wait|i think|i'm afraid|honestly|again|嗯|好的|好|行|哦|啊|那) *(?:\b|$) *)+`)
	no     = regexp.MustCompile(`^(?:no|nope|nah|not really|wrong|incorrect|不对|错了?|不行)$`)
	fault  = regexp.MustCompile(`^(?:` + strings.Join([]string{
		this + is + adv + ` (?:the |a |an )?` + bad, this + is + adv + ` ` + too,
		this + adv + ` (?:doesn't|does not|didn't|did not|don't|isn't|won't|wasn't|aren't|can't|fails?|failed|crash\w*|panics?|throws?|breaks?|gives? me an? \w* ?error|makes? no sense|missed)\b`,
		`not (?:what|good|right|correct|quite|enough|helpful|working)\b`, `(?:just |way |far |much |a bit |still |completely |totally )*(?:` + too + `|` + bad + `(?:$| (?:answer|code|advice|idea|translation)))`,
		`(?:it |i'm |i |you )?still (?:the same|fail|get|not|wrong|broken|has|have|see|uses?|using|crash|doesn't)`, `(?:doesn't|does not|didn't|can't) (?:work|compile|run|help|make)\b`,
		`i (?:\w+ )?(?:don't|can't|do not|cannot) (?:like|want|understand|get (?:it|this|that)|read|see how)\b`, `i (?:hate|get an?|got an?) (?:\w+ )?(?:this|that|it|error|these|those|list|exception)`,
		`you(?:'re| are) (?:still |just )?(?:wrong|mistaken|hallucinating|lying|not )`, `you (?:(?:used|gave|wrote|picked|translated|made up) (?:me )?the wrong|made a mistake)`, `why (?:did|do|didn't|don't|are) you\b`,
		`there(?:'s| is| are) no such`, `ugh+\b`, `👎`,
		`(?:这|那|你|您|你的|这个|那个|代码|语气|输出)*(?:个|些)?(?:回答|答案|结果|代码|解释|翻译)?(?:说|写|做|算|搞|弄|翻)?(?:得|的)?(?:还是|又|都|完全|根本|全|好像|有点|是)*(?:不对|错了|错的|错$|不正确|不准确|有误|有问题|没用|不太好|不好(?:$|用|看)|不行|看不懂|没看懂|没听懂|答非所问|不满意|报错|跑不|运行不|没有?(?:解决|翻译|回答|用)|胡说|乱七八糟|垃圾|不是(?:我|这个|这样)|什么乱|太(?:长|短|啰嗦|罗嗦|复杂|简单|笼统|正式|难|多|差))`,
	}, `|`) + `)`)
	correction = regexp.MustCompile(`^(?:no )?(?:(?:i|what i) (?:already |really |actually )?(?:said|meant|asked for|asked you|wanted|told you)\b|you (?:forgot|missed|ignored|completely ignored|misunderstood|misread|should(?:n't)?(?: have)?|didn't|did not|were supposed|left out)\b|actually it\b|` + this + ` (?:should|was supposed)|` + this + `(?:'s| is) (?:actually |not \w+ but )|don't forget|我(?:说(?:了|的|过)|问的|要的|想要的?是|指的|的意思)|我没让你|应该(?:是|用|写)|你(?:忘|漏|没|理解错|误解|弄错|搞错)|少(?:翻|写|了)|其实是|正确(?:的|答案)是?|说了多少遍)`)
	direction  = regexp.MustCompile(`^(?:(?:can|could|would|will) you |please |just |next time |make it |keep it |be |respond with )*(?:(?:a bit |much |more |something |even )?(?:shorter|longer|simpler|briefer|brief|concise|clearer|detail|more detail|less \w+)\b|(?:answer|reply|explain|say|write|rewrite|summari[sz]e|rephrase|do|try|put|give|use)(?: it| that| this| me| the answer)?,? (?:again|in|as|with|without|only|more|less|shorter|simpler|differently|briefly|properly|one|two|plain|fewer)\b|use (?:\w+ ){1,3}instead|(?:try|do it) again|redo|rewrite (?:it|this|that)|fix (?:it|this|that)|simplify|shorten|give me the|without (?:the |any )?\w+|only the|(?:code|text|bullet points|one sentence)(?: only)?$|(?:no|not use) (?:markdown|lists?|bullets?|bullet points|emojis?|code|jargon|explanations?|\w+$)|in (?:one|two|three|a) (?:\w+ )?(?:words?|sentences?|lines?|paragraphs?)|(?:don't|do not|stop|never) (?:us|writ|repeat|add|includ|apologi|explain)\w*|` +
		`(?:请|你|能|能不能|可以|更|再)*(?:用(?:一|两|几)?(?:句|个词|中文|英文|简单|列表|表格)|(?:简短|简洁|简单|详细|具体|通俗|口语)(?:一?点|一?些|化|地|回答|说|解释)|短一?(?:点|些)|长一?(?:点|些)|(?:不要|别)(?:用|再|写|加|说|给|解释|重复|列)|我不要|换(?:成|个|一)|改成|重新|重写|说人话|再(?:来|写|试|说|回答|解释)一?(?:次|遍)|只(?:要|给|用|说|回答)))`)
	praise = regexp.MustCompile(`^(?:(?:many |much |ok )?(?:thanks|thank you|thx|ty|cheers)\b|i (?:can't thank|appreciate|love|like) (?:you|it|this|that)|appreciat|(?:very |really |so |looks |all |pretty )*` + good + `(?:$| (?:job|work|answer|one|idea|explanation|summary|start|to me|and|thanks|thank you)\b)|(?:that|this|it)?(?: now| finally)? ?(?:works?|worked|helps|helped|makes? (?:perfect |a lot of )?sense|did (?:it|the trick)|fixed it)\b(?: (?:now|like a charm|great|fine|perfectly|for me|here))*[! ]*$|` + this + is + adv + ` ` + good + `|(?:exactly|just) (?:what|right)|not bad|(?:problem )?solved|lgtm|well done|couldn't be better|no problem|you(?:'re| are) right|👍|❤|` +
		`(?:非常|多|真的?|太|很)?(?:感谢|谢谢|谢了|谢啦)|(?:这|那|回答|写|说|做|解释|讲|翻译)?(?:个|得|的)?(?:非常|真的?|太|很|挺|还)?(?:棒|好了$|好$|不错|完美|赞|厉害|清楚|有用|有帮助|准确|正确$|好看|好用)|说得对|没错|对的|正是|就是这个|(?:终于|都)?(?:解决|可以|成功|搞定|跑通|明白|懂|学到)了|没问题|辛苦了|原来如此|很满意|就(?:按|用)(?:这|它))`)
	perhaps   = regexp.MustCompile(`\b(?:would|could you|might|if|unless|only|sometimes|at first)\b|如果|要是|除非|吗$|呢$`)
	asking    = regexp.MustCompile(`^(?:what|who|which|when|where|why|how|is|are|was|do|does|did|has|have|can|could|would|will|write|translate|explain|give|show|list|tell|make|find|create|calculate|implement|add|summari[sz]e|answer|什么|谁|哪|怎么|怎样|为什么|如何|几|多少|写|翻译|解释|介绍|列出|告诉|帮我|请问|给我|用(?:中|英)文)`)
	newTask   = regexp.MustCompile(`[:：].*\S|介绍|(?:sentences?|words?|terms|句话)\W* ?(?:what|why|who|how|介绍|解释|说明|总结|描述)`)
	ownThing  = regexp.MustCompile(`^(?:here(?:'s| is| are)|i (?:wrote|have|made|am writing|was)|my \w+ |below|以下|这是我|下面|我(?:写|有|在))`)
	timeStamp = regexp.MustCompile(`^\s*\[[^\]\n]{0,60}\d{1,2}:\d{2}[^\]\n]{0,20}\]\s*`) // agents put the time before the user's words
	foreign   = regexp.MustCompile("(?s)```.*?(?:```|$)|`[^`\n]*`|\"[^\"\n]{2,}\"|“[^”]*”|「[^」]*」|(?m:^[ \t]*>.*$)")
	stops     = regexp.MustCompile(`[!?;,\n。！？；，…]+|\.(?:\s|$)|\b(?:but|however|although)\b|但是|不过|可是`)
	thousands = regexp.MustCompile(`(\d),(\d{3})\b`)
	chinese   = regexp.MustCompile(`(\p{Han}) +(\p{Han})`)
	greeting  = regexp.MustCompile(`(?i)^(?:no|nope|sorry|hey|hi|hello|please|ok|okay|thanks|thank you|wrong|不对?|错了?)$`)
)

// aToo is what to do about an answer that is too long, and so on.
var aToo = []struct {
	pattern *regexp.Regexp
	say     string
}{
	{regexp.MustCompile(`too (?:long|verbose|wordy|detailed|much|many)|太(?:长|啰嗦|罗嗦)`), "Answer more briefly."},
	{regexp.MustCompile(`too (?:short|brief|vague|general|generic)|太(?:短|笼统|简单)`), "Answer in more detail."},
	{regexp.MustCompile(`too (?:complicated|complex|technical|hard|dense)|太复杂|看不懂|don't understand`), "Explain it more simply."},
}

// heardIn is what a message says of an answer to a request: +1, -1 with a hint, or 0.
func heardIn(message, request, answer string) *pb.Vote {
	text := timeStamp.ReplaceAllString(middleCut(message, readable), "")
	if sameQuestion(request, text) {
		return &pb.Vote{Score: -1, Rationale: "the user asks the same again"}
	}
	masked := foreign.ReplaceAllStringFunc(strings.NewReplacer("’", "'", "‘", "'").Replace(text), func(quoted string) string {
		return strings.Repeat("\x00", len(quoted)) // what somebody else said: no pattern matches it
	})
	masked = chinese.ReplaceAllString(thousands.ReplaceAllString(masked, "$1$2"), "$1，$2")
	answerAsks := strings.ContainsAny(lastRune(answer), "?？") && len(answer) < 200 // then "no" and instructions are the reply to it
	var praised, blamed, directed, asked bool
	var hints []string
	rationale := ""
	for _, clause := range clauses(masked) {
		low := filler.ReplaceAllString(strings.ToLower(clause.text), "")
		switch {
		case asked: // what follows a new request belongs to it
		case ownThing.MatchString(low): // what follows speaks of that, and not of the answer
			asked = true
		case no.MatchString(low) && !clause.question:
			if !answerAsks {
				blamed, rationale = true, "the user says no"
			}
		case fault.MatchString(low) && (!clause.question || strings.HasPrefix(low, "why")):
			blamed, rationale = true, "the user complains"
		case correction.MatchString(low) && !clause.question:
			blamed, rationale = true, "the user corrects"
			hints = append(hints, clause.text)
		case direction.MatchString(low) && !newTask.MatchString(low):
			directed = !answerAsks
			hints = append(hints, clause.text)
		case praise.MatchString(low) && !perhaps.MatchString(low) && !(clause.question && asking.MatchString(low)):
			if praised = true; clause.afterBut { // "it failed at first, but now it works"
				blamed, hints = false, nil
			}
		case clause.question || asking.MatchString(low) || newTask.MatchString(low):
			asked = true
		case blamed && !greeting.MatchString(clause.text):
			hints = append(hints, clause.text)
		}
	}
	switch {
	case blamed:
		return &pb.Vote{Score: -1, Rationale: rationale, Hint: hintOf(hints, masked)}
	case directed && !asked:
		return &pb.Vote{Score: -1, Rationale: "the user wants it done differently", Hint: hintOf(hints, masked)}
	case praised:
		return &pb.Vote{Score: 1, Rationale: "the user is satisfied"}
	}
	return &pb.Vote{Rationale: "the user says nothing of the answer"}
}

func lastRune(text string) string {
	last, _ := utf8.DecodeLastRuneInString(strings.TrimSpace(text))
	return string(last)
}

type clause struct {
	text               string
	question, afterBut bool
}

// clauses cuts a message at stops, commas and "but"; at most 40.
func clauses(text string) (found []clause) {
	begin, afterBut := 0, false
	lower := strings.Map(func(r rune) rune { // places in it are places in text
		if low := unicode.ToLower(r); utf8.RuneLen(low) == utf8.RuneLen(r) {
			return low
		}
		return r
	}, text)
	add := func(end int, stop string) {
		piece := strings.TrimSpace(strings.Trim(text[begin:end], " *#-:：\t"))
		if strings.Trim(piece, "\x00 ") != "" && len(found) < 40 {
			found = append(found, clause{piece, strings.ContainsAny(stop, "?？"), afterBut})
		}
	}
	for _, at := range stops.FindAllStringIndex(lower, -1) {
		if at[0] < begin {
			continue
		}
		stop := lower[at[0]:at[1]]
		add(at[0], stop)
		begin = at[1]
		afterBut = afterBut || unicode.IsLetter([]rune(stop)[0])
	}
	add(len(text), "")
	return found
}

// hintOf makes a hint of the user's own words, at most 300 characters.
func hintOf(clauses []string, message string) string {
	if len(clauses) == 0 {
		for _, too := range aToo {
			if too.pattern.MatchString(strings.ToLower(message)) {
				return too.say
			}
		}
		return ""
	}
	return sentence(strings.Join(clauses, ", "))
}

// sentence begins with a capital and ends with a stop.
func sentence(text string) string {
	runes := []rune(strings.TrimRight(strings.Join(strings.Fields(strings.ReplaceAll(text, "\x00", "")), " "), " .,。，"))
	if len(runes) == 0 {
		return ""
	}
	runes[0] = unicode.ToUpper(runes[0])
	if len(runes) > 299 {
		runes = runes[:299]
	}
	if last := runes[len(runes)-1]; unicode.IsLetter(last) || unicode.IsDigit(last) {
		if unicode.Is(unicode.Han, last) {
			return string(runes) + "。"
		}
		return string(runes) + "."
	}
	return string(runes)
}

// sameQuestion tells whether a message asks nothing that the request before did not, and most of it again.
func sameQuestion(before, now string) bool {
	old, again := map[string]struct{}{}, map[string]struct{}{}
	for _, word := range wordsOf(before) {
		old[word] = struct{}{}
	}
	for _, word := range wordsOf(now) {
		if _, there := old[word]; !there && word != "again" && word != "please" {
			return false
		}
		again[word] = struct{}{}
	}
	return len(again) >= 3 && len(again)*10 >= len(old)*6
}
