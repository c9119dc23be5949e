package main

import (
	"regexp"
	"strings"
	"unicode"

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
	filler = regexp.MustCompile(`^(?:(?:well|hm+|um+|ok|okay|so|hey|oh|ah|look|yeah|yes|and|then|now|please|sorry|wait|i think|i'm afraid|honestly|again) +)+`)
	no     = regexp.MustCompile(`^(?:no|nope|nah|not really|wrong|incorrect|不是?|不对|错了?|不行|没有?)$`)
	fault  = regexp.MustCompile(`^(?:` + this + is + adv + ` ` + bad + `|` + this + adv + `? (?:doesn't|does not|didn't|did not|don't|isn't|won't|wasn't|aren't|can't)\b|` +
		this + is + adv + ` ` + too + `|(?:way |far |much )?` + too + `|(?:still )?(?:wrong|incorrect|not (?:working|right|correct|what|quite right|helpful))\b|i (?:don't|still don't|can't) (?:understand|get (?:it|this|that))|` +
		`(?:这|那|你|您)?(?:个|些)?(?:回答|答案|结果|代码|解释|翻译)?(?:说|写|做|算|搞|弄)?(?:得|的)?(?:还是|又|都|完全|根本|全|好像|太|有点)*(?:不对|错|不正确|不准确|有误|有问题|没用|不好|不太好|不行|看不懂|没看懂|答非所问|长了?$|短了?$|啰嗦|复杂|简单了|笼统|罗嗦|不是(?:我|这个|这样)))`)
	correction = regexp.MustCompile(`^(?:(?:no )?(?:i|what i) (?:said|meant|asked|wanted|told you)\b|you (?:forgot|missed|ignored|misunderstood|misread|should(?:n't)?(?: have)?|didn't|did not|were supposed|left out|made)\b|actually\b|it should\b|don't forget|我(?:说|问|要|想要|指|的意思)的?是?|应该(?:是|用|写)?|你(?:忘|漏|没|理解错|误解|弄错|搞错)|其实|正确(?:的|答案)是?)`)
	direction  = regexp.MustCompile(`^(?:(?:can|could|would|will) you |please |just |next time |make it |keep it |be )*(?:(?:a bit |much |more )?(?:shorter|longer|simpler|briefer|brief|concise|clearer|in more detail|less \w+)\b|(?:answer|reply|explain|say|write|rewrite|summari[sz]e|rephrase|do|try|put|give|use)(?: it| that| this| me| the answer)?,? (?:again|in|as|with|without|only|more|less|shorter|simpler|differently|briefly|properly|one|two|plain|fewer)\b|try again|without (?:the |any )?\w+|no (?:markdown|lists?|bullet points|emojis?|code|jargon|explanations?)|in (?:one|two|three|a) (?:\w+ )?(?:words?|sentences?|lines?|paragraphs?)|(?:don't|do not|stop|never) (?:use|using|write|writing|repeat|repeating|add|adding|include|apologi\w+|explain\w*)|` +
		`请?(?:你)?(?:再)?(?:用(?:一|两|几)?(?:句|个词|中文|英文|简单|列表|表格)|(?:简短|简洁|简单|详细|具体|通俗|口语)(?:一?点|一?些|地|回答|说|解释)?|短一?(?:点|些)|长一?(?:点|些)|(?:不要|别)(?:用|再|写|加|说|给|解释|重复)|换(?:成|个|一)|重新|再(?:来|写|试|说|回答|解释)一?(?:次|遍)|只(?:要|给|用|说|回答)))`)
	praise = regexp.MustCompile(`^(?:thanks|thank you|thx|many thanks|cheers|` + good + `(?:$| (?:job|work|answer|one|idea|explanation|thanks|thank you)\b)|(?:that|this|it)(?: now| finally)? (?:works|worked|helps|helped|makes sense|did it|fixed)\b|` + this + is + adv + ` ` + good + `|not bad|no problem|you're right|you are right|i (?:love|like) (?:it|this|that)|` +
		`(?:非常|多|真的?|太|很)?(?:感谢|谢谢|谢了|谢啦)|(?:这|那|回答|写|说|做|解释)?(?:个|得|的)?(?:非常|真的?|太|很|挺|还)?(?:棒|好了$|好$|不错|完美|赞|厉害|清楚|有用|有帮助|准确|正确$)|没错|对的|正是|就是这个|解决了|可以了|好用|没问题|明白了|懂了)`)
	perhaps   = regexp.MustCompile(`\b(?:would|could|might|if|unless|only|sometimes|at first)\b|如果|要是|除非|吗$|呢$`)
	asking    = regexp.MustCompile(`^(?:what|who|which|when|where|why|how|is|are|was|do|does|did|has|have|can|could|would|will|write|translate|explain|give|show|list|tell|make|find|create|calculate|implement|summari[sz]e|什么|谁|哪|怎么|怎样|为什么|如何|几|多少|写|翻译|解释|介绍|列出|告诉|帮我|请问|给我)`)
	timeStamp = regexp.MustCompile(`^\s*\[[^\]\n]{0,60}\d{1,2}:\d{2}[^\]\n]{0,20}\]\s*`) // agents put the time before the user's words
	foreign   = regexp.MustCompile("(?s)```.*?(?:```|$)|`[^`\n]*`|\"[^\"\n]{2,}\"|“[^”]*”|「[^」]*」|(?m:^[ \t]*>.*$)")
	stops     = regexp.MustCompile(`[!?;,\n。！？；，…]+|\.(?:\s|$)|\b(?:but|however|although)\b|但是|不过|可是`)
	thousands = regexp.MustCompile(`(\d),(\d{3})\b`)
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

// heardIn is what a message says of the answer: +1, -1 with a hint, or 0.
func heardIn(message, request string) *pb.Vote {
	text := timeStamp.ReplaceAllString(message, "")
	if sameQuestion(request, text) {
		return &pb.Vote{Score: -1, Rationale: "the user asks the same again"}
	}
	masked := foreign.ReplaceAllStringFunc(strings.NewReplacer("’", "'", "‘", "'").Replace(text), func(quoted string) string {
		return strings.Repeat("\x00", len(quoted)) // what somebody else said: no pattern matches it
	})
	var praised, blamed, asked bool
	var hints []string
	var rationale string
	masked = thousands.ReplaceAllString(masked, "$1$2")
	for _, clause := range clauses(masked) {
		low := filler.ReplaceAllString(strings.ToLower(clause.text), "")
		switch {
		case asked: // what follows a new request belongs to it
		case no.MatchString(low) && !clause.question:
			blamed, rationale = true, "the user says no"
		case praise.MatchString(low) && !perhaps.MatchString(low) && !(clause.question && asking.MatchString(low)):
			if praised = true; rationale == "" || clause.afterBut {
				rationale = "the user is satisfied"
			}
			if clause.afterBut { // "it failed at first, but now it works"
				blamed, hints = false, nil
			}
		case fault.MatchString(low) && !clause.question:
			blamed, rationale = true, "the user complains"
		case correction.MatchString(low) && !clause.question:
			blamed, rationale = true, "the user corrects"
			hints = append(hints, clause.text)
		case direction.MatchString(low):
			blamed, rationale = true, "the user wants it done differently"
			hints = append(hints, clause.text)
		case clause.question || asking.MatchString(low):
			asked = true
		case blamed && !greeting.MatchString(clause.text):
			hints = append(hints, clause.text)
		}
	}
	switch {
	case blamed:
		return &pb.Vote{Score: -1, Rationale: rationale, Hint: hintOf(hints, masked)}
	case praised:
		return &pb.Vote{Score: 1, Rationale: rationale}
	}
	return &pb.Vote{Rationale: "the user says nothing of the answer"}
}

type clause struct {
	text               string
	question, afterBut bool
}

// clauses cuts a message at stops, commas and "but"; at most 40.
func clauses(text string) (found []clause) {
	lower, begin, afterBut := strings.ToLower(text), 0, false
	if len(lower) != len(text) { // a letter whose lower case is longer
		lower = text
	}
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
