"""Signs of failure and success in the plain text of tool results.

They are those of shells, compilers, test runners, interpreters, package managers, servers and of agent frameworks
(OpenAI Agents, LangChain, LlamaIndex, CrewAI, AutoGen, smolagents, Pydantic-AI, Claude Code, OpenHands, SWE-agent,
MCP). None is certain: the text may be a log or a source file that the tool was asked to read. So most patterns hold at
the start only, and those that hold on any line are formats that prose does not have.
"""

from __future__ import annotations

import re

#: Characters of a result read at its start and its end.
ENDS = 600

#: At the start of a result.
HEAD = re.compile(
    r"\W{0,4}(?:(?:error|fatal|exception|panic|failure|错误|失败|出错|报错|异常|err)(?:\s*(?:\[\w+\]|\(\w+\)))?\s*[:：!！]"
    r"|error (?:while|occurred|executing|running|in|at|reading|opening|calling|parsing|invoking|from|response"
    r"|\d{3,5}\b)|an error occurred|failed (?:to|with)\b|exception in thread\b|uncaught \w"
    r"|failed[:!]|traceback \(most recent call last\)|(?:[\w.]{1,80}\.)?\w{0,60}(?:Error|Exception)\s*[:(]"
    r"|(?:\w{1,40}\.){1,6}(?:errors|exceptions)\.\w{1,60}:|segmentation fault|permission denied"
    r"|access (?:is )?denied|unauthorized\b|forbidden\b|command not found|no such (?:file|tool|function)|invalid "
    r"(?:argument|parameter|json|tool|input|format|or incomplete|`\w+` parameter)s?\b"
    r"|unknown (?:tool|function|command|option|language)\b|tool (?:execution |call )?(?:failed|error|not found)"
    r"|(?:operation |request |command |connection |the command )?timed out"
    r"|(?:http(?:/[\d.]+)? )?(?:4\d\d|5\d\d) (?:not found|forbidden|unauthorized|bad request|internal server error"
    r"|bad gateway|service unavailable|too many requests|client error|server error)"
    r"|http (?:error )?(?:4|5)\d\d\b|<(?:tool_use_)?error>|(?:执行|调用|工具调用|操作|请求|连接)(?:失败|出错|超时"
    r"|异常)|无法(?:找到|连接|打开|读取|执行)|未找到|找不到|权限不足|没有权限"
    # Frameworks and agents' tools.
    r"|encountered (?:an )?error\b|i encountered an error while trying to use the tool|code execution failed\b"
    r"|no replacement was performed|string to replace not found|file (?:does not exist|has not been read yet)"
    r"|your (?:proposed )?edit (?:was|has) not\b|the user doesn't want to proceed|could not parse\b|mcp error -?\d"
    r"|\d{1,3} validation errors? for \w|[\w.-]{1,60} is not a valid tool|action '[^'\n]{1,80}' don't exist"
    r"|the code block did not finish|inputvalidationerror|invalid_request|rate limit exceeded|quota exceeded"
    # Commands.
    r"|curl: \(\d|wget: |e: |npm err!|npm error\b|psql: error|sqlstate\b|ora-\d{5}|(?:error|warning) from server|"
    r"unable to \w|cannot \w|can't open|could not \w|ping: |ssh: |scp: |rsync error|pip: error|usage: )", re.IGNORECASE)
#: "name: message" of a shell or a command, a whole line.
SHELL = re.compile(
    r"(?:[\w./-]{1,60}: ){1,3}.{0,160}(?:command not found|no such file or directory|permission denied"
    r"|not a directory|is a directory|directory not empty|file exists|operation not permitted"
    r"|connection refused|cannot .{1,80}|not found|unrecognized option .{1,40}|invalid option .{1,40}"
    r"|unknown host.{0,40}|illegal option .{1,40}|syntax error.{0,80})$", re.IGNORECASE)
#: On any line near the start or the end.
_LINE = re.compile(
    r"^(?:[^\s:()]{1,200}[:(]\d{1,7}(?:[:,]\d{1,7})?\)?: (?:fatal )?error\b"  # gcc, clang, javac, MSVC, mypy
    r"|[^\s:()]{0,200}\(?(?:\d{1,7},\d{1,7})?\)?:? ?error (?:TS|CS|C|LNK|MSB)\d{3,5}:"
    r"|error\[E\d{4}\]|error: (?:could not compile|aborting due to|failed to push|linking with)"
    r"|make(?:\[\d+\])?: \*\*\* |npm (?:ERR!|error code)|ERROR: (?:Could not|No matching|Failed)"
    r"| ?! \[(?:remote )?rejected\]|fatal: \w|Error from server\b|Error response from daemon"
    r"|\s{1,8}\+ (?:CategoryInfo|FullyQualifiedErrorId)|'[^'\n]{1,80}' is not recognized as an internal or external"
    r"|BUILD FAIL(?:ED|URE)\b|\[ERROR\] Failed to execute goal|FAILED \((?:failures|errors)=\d|--- FAIL: |FAIL\t"
    r"|test result: FAILED|Tests:? +\d+ failed|=+ .{0,60}\b\d+ (?:failed|errors?)\b.{0,80}=+$"
    r"|Found \d+ errors?\b|Exception in thread \"|Caused by: [\w.]{1,100}(?:Exception|Error)|panic: |Segmentation fault"
    r"|thread '[^'\n]{1,60}' (?:\(\d+\) )?panicked at|Node\.js v\d+\.\d+|Now let's retry: take care"
    r"|(?:Uncaught )?\w{0,40}Error: .{1,200}\n\s+at )", re.MULTILINE)
_PAGE = re.compile(r"<(?:title|h1)>\s*(?:[45]\d\d\b|(?:not found|forbidden|access denied|bad gateway"
                   r"|internal server error|service unavailable)\s*<)", re.IGNORECASE)
LAST = re.compile(r"(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception)(?::.*)?$")
_DONE = re.compile(
    r"^(?:=+ (?:\d+ (?:passed|skipped|warnings?|deselected|xfailed)(?:, )?)+ in [\d.]+ ?s.{0,30}=*$|test result: ok\b"
    r"|Tests:? +\d+ passed\b|OK(?: \(.{1,40}\))?$|BUILD SUCCESS(?:FUL)?\b|ok  \t|All checks passed|All tests passed"
    r"|Success(?:fully\b|!|: )|(?:The )?file (?:.{0,160} )?(?:has been )?(?:(?:created|updated|edited|written|saved) "
    r"successfully|(?:created|updated|edited|written|saved)\b(?= (?:at|to)\b)|successfully \w)|(?:Done|完成)[.!。！]?$"
    r"|(?:操作|执行|调用|保存|创建|更新|删除|发送)成功"
    r"|\w[\w.-]{0,60}/[\w.-]{1,80} (?:created|configured|unchanged|deleted"
    r"|patched|scaled)$|no issues found)", re.MULTILINE | re.IGNORECASE)
_PASTED = re.compile(r"(?:[\w.]{1,80}\.)?\w{0,60}(?:Error|Exception)\s*[:(]|error(?:\[\w+\])?: \w|fatal: \w"
                     r"|(?:ba|z)?sh: |npm err|ERROR: |uncaught \w", re.IGNORECASE)
_HELP = re.compile(r"(?:^|\s)(?:--help|-h|-\?|/\?|help|man)\b")


def failed(text: str, command: str = "") -> bool:
    """Whether a result's text looks like an error. `command`: the shell command that was run, if it is known."""
    head = next((line for line in text[:ENDS].splitlines() if line.strip()), "")
    last = next((line for line in reversed(text[-ENDS:].splitlines()) if line.strip()), "")
    if usage(head, command):
        return True
    if HEAD.match(head) and not head.lower().lstrip().startswith("usage: "):
        return True
    return bool(SHELL.fullmatch(head.strip()) or _PAGE.search(text[:ENDS]) or _LINE.search(text[:ENDS])
                or _LINE.search(text[-ENDS:])
                or ("Traceback (most recent call last)" in text and LAST.fullmatch(last.strip()))
                or (last.strip() and LAST.fullmatch(last.strip()) and "\n  File \"" in f"\n{text[-ENDS:]}"))


def usage(head: str, command: str) -> bool:
    """Whether a command showed its usage without being asked for it."""
    return head.lower().lstrip().startswith("usage: ") and not _HELP.search(command)


def succeeded(text: str) -> bool:
    """Whether a result's text says that all went well."""
    return bool(_DONE.search(text[:ENDS]) or _DONE.search(text[-ENDS:]))


def pasted_error(message: str) -> str:
    """The line of an error that a user has pasted; empty if there is none."""
    lines = [line.strip() for line in message[-2 * ENDS:].splitlines() if line.strip()]
    if (line := next((line for line in reversed(lines) if LAST.fullmatch(line)), "")):
        return line
    return next((line for line in lines if len(line) < 300 and (SHELL.fullmatch(line) or _LINE.search(line)
                                                                or _PASTED.match(line))), "")
