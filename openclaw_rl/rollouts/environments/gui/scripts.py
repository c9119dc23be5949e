"""Scripts that run inside the sandboxes of type `gui`. All their files are in /tmp/desk there."""

from __future__ import annotations

import io
import tarfile
from functools import cache
from pathlib import Path

DESK = "/tmp/desk"
WIDGETS = f"{DESK}/widgets"
APPS = Path(__file__).parent / "apps"
#: Applications that come with the package, by name.
APP_NAMES = tuple(sorted(path.stem for path in APPS.glob("*.py")
                         if path.stem not in ("__init__", "widgets", "window")))

#: Prints the content of the screen, section by section. $1: a word that begins the sections' names, which nobody in the
#: sandbox can guess; $2: a number that grows, or 0 to wait for nothing.
#: Applications that publish widgets are asked for them before and after the picture has come to rest (for 0.7 s at
#: most: some never do), so that the output reflects everything that the last action caused.
LOOK = r"""
word=$1; number=$2; screen=/tmp/desk/screen/Xvfb_screen0; widgets=/tmp/desk/widgets; line='
'
files() { (cd $widgets && find . -maxdepth 1 -type f -name '0x*' ! -name '*[!0-9a-fx]*' | head -n 20); }
ask() {
  echo "$1" >$widgets/serial
  for file in $(files); do
    file=${file#./}
    xprop -id "$file" -f _DESK_ASK 32c -set _DESK_ASK "$1" || { rm -f "$widgets/$file"; continue; }
    tries=0
    while [ $tries -lt 40 ]; do
      case $(head -c 20 "$widgets/$file") in "$1$line"*) break;; esac
      sleep 0.025; tries=$((tries + 1))
    done
  done 2>/dev/null
}
if [ "$number" != 0 ]; then
  ask "${number}0"
  old=$(md5sum <$screen); tries=0
  while sleep 0.04; new=$(md5sum <$screen); [ "$old" != "$new" ] && [ $tries -lt 15 ]; do
    old=$new; tries=$((tries + 1))
  done
  ask "${number}1"
fi
echo "@$word root"
xprop -root _NET_CLIENT_LIST_STACKING _NET_ACTIVE_WINDOW _NET_SUPPORTING_WM_CHECK || exit 9
echo "@$word tree"; xwininfo -root -tree 2>/dev/null | head -c 65536; echo
echo "@$word visible"; xdotool search --onlyvisible --maxdepth 1 --name '' 2>/dev/null | head -n 500
for file in $(files); do echo "@$word widgets ${file#./}"; head -c 262144 "$widgets/$file"; echo; done
if [ -e /tmp/desk/ended ]; then echo "@$word ended"; head -c 20 /tmp/desk/ended; fi
echo "@$word png"
scrot -o "/tmp/desk/$word.png" && head -c 4194304 "/tmp/desk/$word.png"; rm -f "/tmp/desk/$word.png"
"""

#: Waits for the window manager. 9: there is no display.
MANAGED = r"""
tries=0
while :; do
  said=$(xprop -root _NET_SUPPORTING_WM_CHECK 2>&1) || exit 9
  case $said in *"window id"*) exit 0;; esac
  [ $tries -lt 400 ] || exit 1
  sleep 0.05; tries=$((tries + 1))
done
"""

#: Waits for an application's first window; $1: tenths of a second, $2: it publishes its widgets. 1: there is none in
#: that time, 2: the application has ended, 9: there is no display.
OPENED = r"""
tries=0
while [ $tries -lt $(($1 * 2)) ]; do
  said=$(xprop -root _NET_CLIENT_LIST 2>&1) || exit 9
  case $said in *0x*)
    [ "$2" = no ] && exit 0
    for file in /tmp/desk/widgets/0x*; do case $file in *.new) ;; *) [ -s "$file" ] && exit 0;; esac; done;;
  esac
  [ -e /tmp/desk/ended ] && exit 2
  sleep 0.05; tries=$((tries + 1))
done
exit 1
"""

#: Types its stdin. The arguments are characters that an American keyboard lacks, as U4E2D; they are mapped to unused
#: keys, and stay there: xdotool would take each away again at once, and an application that is slow to look
#: up which character a key has would miss it. And xdotool would type a line feed as a character that only terminals
#: take for Return.
TYPE = r"""
if [ $# -gt 0 ]; then
  cd /tmp/desk && { [ -e keys.xkb ] || xkbcomp -w 0 :1 keys.xkb; } || exit 1
  number=207; keys=
  for name; do number=$((number + 1)); keys="${keys}override key <I$number> { [ $name ] };\\n"; done
  sed "/^xkb_symbols/,/^};/ s/^};/$keys};/" keys.xkb | xkbcomp -w 0 - :1 || exit 1
fi
while IFS= read -r line || { last=yes; [ -n "$line" ]; }; do
  [ -z "$line" ] || printf %s "$line" | xdotool type --clearmodifiers --delay 4 --file - || exit 1
  [ -n "$last" ] || xdotool key --clearmodifiers Return || exit 1
done
"""

#: Prints the missing ones of the required programs.
MISSING = r"""
for name in Xvfb jwm xkbcomp xdotool xprop xwininfo scrot md5sum find tar; do
  command -v $name >/dev/null || echo $name
done
/usr/bin/python3 -E -s -S -c 'import tkinter' 2>/dev/null || echo python3-tk
"""

#: Runs an application and stores its exit code, which shows that it has ended.
RUN = r"""
rm -f /tmp/desk/ended
"$@"
echo $? >/tmp/desk/ended
"""

MANAGER = """<?xml version="1.0"?>
<JWM>
 <Tray x="0" y="-1" height="28" autohide="off"><TaskList maxwidth="220"/><Spacer/></Tray>
 <WindowStyle decorations="flat">
  <Font>DejaVu Sans-10:bold</Font><Width>3</Width><Height>24</Height><Corner>4</Corner>
  <Foreground>#5b6675</Foreground><Background>#cfd6df</Background><Outline>#aab4c0</Outline>
  <Active><Foreground>#ffffff</Foreground><Background>#2f6db5</Background><Outline>#24578f</Outline></Active>
 </WindowStyle>
 <TrayStyle decorations="flat">
  <Font>DejaVu Sans-10</Font><Background>#28323f</Background><Foreground>#e6ebf1</Foreground>
 </TrayStyle>
 <TaskListStyle list="all" group="false">
  <Font>DejaVu Sans-10</Font><Foreground>#e6ebf1</Foreground><Background>#28323f</Background>
  <Active><Foreground>#ffffff</Foreground><Background>#2f6db5</Background></Active>
 </TaskListStyle>
 <Desktops width="1" height="1"><Background type="solid">#64798f</Background></Desktops>
 <FocusModel>click</FocusModel>
 <DoubleClickSpeed>400</DoubleClickSpeed><DoubleClickDelta>2</DoubleClickDelta>
 <SnapMode distance="0">none</SnapMode><MoveMode>opaque</MoveMode><ResizeMode>opaque</ResizeMode>
</JWM>
"""


@cache
def bundle() -> bytes:
    """All scripts as a tar for /tmp/desk."""
    files = {"look.sh": LOOK, "managed.sh": MANAGED, "opened.sh": OPENED, "run.sh": RUN, "type.sh": TYPE,
             "jwmrc": MANAGER, **{f"apps/{path.name}": path.read_text() for path in sorted(APPS.glob("*.py"))}}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, text in files.items():
            data = text.lstrip("\n").encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()
