"""The scripts that run on a machine, in POSIX sh: what is there, and each thing put right. Texts only; runs none.

Each script is one function that is read whole before it starts, says what it found with `say`, and ends with `end`.
"""

from __future__ import annotations

from muster.jobs.common.ssh import quote

BASE = ".local/share/muster"  # of all we bring, below the home
INCOMING = f"{BASE}/incoming"  # wheels on their way in

_HEAD = r"""
say() { printf '@muster %s\n' "$*"; }
base=$HOME/.local/share/muster
at=$base/agents/$name
kept=${at#"$HOME"}/keep
unit=muster-$name.service
units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
if [ -z "${XDG_RUNTIME_DIR:-}" ] && [ -d "/run/user/$(id -u)" ]; then
  XDG_RUNTIME_DIR=/run/user/$(id -u); export XDG_RUNTIME_DIR
fi
keeper() {
  child=
  [ -r "$at/keep.pid" ] && read -r pid child <"$at/keep.pid" && kill -0 "$pid" 2>/dev/null || return 1
  { tr '\0' ' ' <"/proc/$pid/cmdline" || ps -o args= -p "$pid"; } 2>/dev/null | grep -qF "$at/keep"
}
cron_lines() {
  crontab -l 2>/dev/null | MARK=$1 awk -v ours="$2" '(/^@reboot / && index($0, ENVIRON["MARK"])) == ours'
}
cron_is() {
  command -v crontab >/dev/null || [ -n "$2" ] || return 0
  [ "$(cron_lines "$1" 1)" != "$2" ] || return 0
  unread=$(crontab -l 2>&1 >/dev/null | grep -vE 'no crontab|No such file') && { echo "$unread" >&2; return 1; }
  others=$(cron_lines "$1" 0)
  if [ -n "$others$2" ]; then printf '%s\n' ${others:+"$others"} ${2:+"$2"} | crontab -; else crontab -r; fi
}
spool() {
  "$program" -c 'import sys; sys.path[:] = [p for p in sys.path if p]
from muster.agent.spool.owner import name_and_folder
print(name_and_folder(sys.argv[1], sys.argv[2] or None)[1])' "$name" "$spool"
}
"""


def script(body: str, **values: str) -> str:
    """`body` with these variables set, all of them quoted."""
    given = "\n".join(f"{name}={quote(value)}" for name, value in values.items())
    return f"{given}\n{_HEAD}\nmain() {{\n{body}\nsay end\n}}\nmain </dev/null\n"


# Variables: name, version, python (`auto` or a path), service.
PROBE = r"""
say home "$HOME"
say user "$(id -un)"
say room "$(df -Pk "$HOME" | awk 'NR == 2 { print $4 }')"
say platform "$(uname -s) $(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null)"
if [ -r /proc/meminfo ]; then say memory "$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)"; fi
if [ -L "$base/current" ]; then say link "$(readlink "$base/current")"; fi
tell='import sys; sys.path[:] = [p for p in sys.path if p]
from importlib.util import find_spec as has
VERSION = "-"
if has("muster"): from muster import VERSION
print("%d.%d" % sys.version_info[:2], "with" if has("ensurepip") else "without", VERSION)'
look() { said=$("$1" -c "$tell" 2>/dev/null) && say python "${said% *} $1"; }
case $python in "~/"*) python=$HOME/${python#"~/"} ;; esac
if [ "$python" != auto ]; then look "$python" && say own "${said##* }"; fi
if [ -r "$base/$version/stamp" ] && look "$base/$version/bin/python" && [ "${said##* }" != - ]; then
  say stamp "$(cat "$base/$version/stamp")"
elif [ "$python" = auto ]; then
  for one in python3 python3.13 python3.12 python3.11 python3.10 python3.14 /usr/local/bin/python3 /opt/*/bin/python3 \
    "$HOME"/miniconda3/bin/python3 "$HOME"/anaconda3/bin/python3 "$HOME"/miniforge3/bin/python3 \
    "$HOME"/.pyenv/versions/*/bin/python3 "$HOME"/.local/share/uv/python/*/bin/python3; do
    path=$(command -v "$one" 2>/dev/null) && look "$path"
  done
fi
if [ -r "$at/key" ] && [ -r "$at/key.pub" ]; then say key "$(cat "$at/key.pub")"; fi
for file in known_hosts ssh_config join keep; do
  if [ -r "$at/$file" ]; then sed "s/^/@muster file $file /" "$at/$file"; fi
done
if [ -r "$units/$unit" ]; then sed "s/^/@muster file unit /" "$units/$unit"; fi
if [ "$service" = user ] && systemctl --user show-environment >/dev/null 2>&1; then
  say manager
  if systemctl --user is-active --quiet "$unit"; then say runs unit; fi
  if systemctl --user is-enabled --quiet "$unit" 2>/dev/null; then say enabled; fi
  case $(loginctl show-user "$(id -un)" --property=Linger 2>/dev/null) in *yes) say lingers ;; esac
fi
if command -v crontab >/dev/null; then
  say crontab
  cron_lines "$kept" 1 | sed 's/^/@muster cron /'
fi
if keeper; then say runs keep; fi
if [ -e "$at/restart" ]; then say restart; fi
for way in "$at"/in/*; do if [ -S "$way" ]; then say way "$way"; fi; done
if [ -s "$at/join.log" ]; then
  error=$(sed -n 's/^error: //p' "$at/join.log" | tail -n 1)
  say last "${error:-$(tail -n 1 "$at/join.log")}"
fi
"""

# name, version, python (that makes the venv; nothing: what there is gets what it misses), stamp, wheel (a file in
# incoming), index (`none`, or nothing), needs (all it is to be installed with, a line each; nothing: as the wheel says)
INSTALL = r"""
set -eu
if [ -n "$python" ]; then
  rm -rf "$base/$version"
  "$python" -m venv "$base/$version" 1>&2 || { rm -rf "$base/$version"; exit 1; }
fi
set -- --quiet --disable-pip-version-check
if [ -n "$index" ]; then set -- "$@" --no-index --find-links "$base/incoming"; fi
pip() { "$base/$version/bin/python" -m pip install "$@" 1>&2; }
if [ -n "$needs" ]; then
  printf '%s\n' "$needs" >"$base/incoming/needs"
  pip "$@" -r "$base/incoming/needs"
  pip "$@" --no-deps "$base/incoming/$wheel"
else
  pip "$@" "$base/incoming/$wheel"
fi
printf '%s' "$stamp" >"$base/$version/stamp"
rm -rf "$base/incoming"
"""
# version; the one before stays, to go back to
LINK = r"""
set -eu
before=$(readlink "$base/current" || :)
ln -sfn "$version" "$base/current"
for each in "$base"/agents/*; do if [ -d "$each" ]; then : >"$each/restart"; fi; done
for each in "$base"/[0-9]*; do case ${each##*/} in "$version" | "$before") ;; *) rm -rf "$each" ;; esac; done
"""
# name
KEY = r"""
set -eu
umask 077
mkdir -p "$at"
rm -f "$at/key" "$at/key.pub"
ssh-keygen -q -t ed25519 -N "" -C "$name" -f "$at/key"
"""
# name, way (not empty: the server makes sockets there) and the files' texts: known_hosts, ssh_config, join, keep, unit
WRITE = r"""
set -eu
umask 077
mkdir -p "$at"
if [ -n "$way" ]; then mkdir -p "$at/in"; chmod 700 "$at" "$at/in"; fi
: >"$at/restart"
put() { printf '%s' "$2" >"$at/$1.new"; chmod "$3" "$at/$1.new"; mv "$at/$1.new" "$at/$1"; }
put known_hosts "$known_hosts" 600
put ssh_config "$ssh_config" 600
put join "$join" 700
put keep "$keep" 700
if [ -n "$unit_text" ]; then
  mkdir -p "$units"
  put unit "$unit_text" 600
  mv "$at/unit" "$units/$unit"
  systemctl --user daemon-reload
fi
"""
# name, program, where, options (a line of words, quoted)
DOCTOR = r"""
cd /
found=$(eval "$command" 2>"$at/doctor.log")
case $found in "{"*) ;; *) cat "$at/doctor.log" >&2; exit 1 ;; esac
rm -f "$at/doctor.log"
say doctor "$found"
"""
_STOP = r"""
no_unit() {
  [ -e "$units/$unit" ] || return 0
  systemctl --user disable --quiet "$unit" 2>/dev/null || :
  rm -f "$units/$unit"
  systemctl --user daemon-reload 2>/dev/null || :
}
works() {
  keeper && return
  case $(systemctl --user is-active "$unit" 2>/dev/null) in *activ*ing | active | reloading) ;; *) return 1 ;; esac
}
stop() {
  systemctl --user stop --no-block "$unit" 2>/dev/null
  keeper && kill -TERM "$pid"
  for round in 1 2; do
    left=$patience
    while [ "$left" -gt 0 ] && works; do sleep 1; left=$((left - 1)); done
    works || return 0
    systemctl --user kill --kill-who=main "$unit" 2>/dev/null
    keeper && kill -TERM "$pid"
    patience=30
  done
  systemctl --user kill --signal=KILL "$unit" 2>/dev/null
  keeper && kill -KILL "$pid" $child
  :
}
"""
# name, how (unit or keep), cron (its line, or nothing), patience (seconds)
START = (
    _STOP
    + r"""
stop
set -e
if [ "$how" = unit ]; then
  loginctl enable-linger 2>/dev/null || :
  systemctl --user enable --quiet "$unit"
  systemctl --user start "$unit"
else
  no_unit
  nohup "$at/keep" >/dev/null 2>&1 &
  for round in 1 2 3 4 5 6 7 8 9; do keeper && break; sleep 1; done
fi
cron_is "$kept" "$cron"
rm -f "$at/restart"
"""
)
# name, program (nothing: it was no agent, and what is installed is not its), spool (as the inventory has it), patience,
# force
REMOVE = (
    _STOP
    + r"""
folder=$(spool 2>/dev/null) || folder=
stop
no_unit
cron_is "$kept" ""
if [ -n "$folder" ] && [ -d "$folder" ]; then
  parts=$(find "$folder/done" -name '*.part' 2>/dev/null | wc -l)
  if [ "$parts" -gt 0 ] && [ -z "$force" ]; then
    say kept "$((parts)) $folder"
    say end
    return
  fi
  rm -rf "$folder"
  "$program" -c 'import sys; sys.path[:] = [p for p in sys.path if p]
from pathlib import Path
from muster.agent.spool.register import forget
forget(Path(sys.argv[1]))' "$folder" 2>/dev/null || :
  case $folder in "$HOME"/*) (cd "$HOME" && above=${folder#"$HOME/"} && rmdir -p "${above%/*}" 2>/dev/null) ;; esac
fi
set -e
rm -rf "$at"
if rmdir "$base/agents" 2>/dev/null || [ ! -d "$base/agents" ]; then
  if [ -n "$program" ]; then rm -rf "$base"; else rmdir "$base" 2>/dev/null || :; fi
  for empty in "$HOME/.local/state/muster" "$HOME/.local/state" "$HOME/.local/share" "$HOME/.local" \
    "$units/default.target.wants" "$units" "${units%/user}" "${units%/systemd/user}"; do
    if [ -d "$empty" ]; then rmdir "$empty" 2>/dev/null || :; fi
  done
fi
"""
)
LOGS = r"""
file=$(spool)/agent.log
[ -r "$file" ] || { echo "there is no $file" >&2; exit 1; }
exec tail -n "$lines" $follow "$file"
"""
# mark (what no other line of the crontab has that is for a start of the machine)
CRON_LINES = r"""
cron_lines "$mark" 1 | sed 's/^/@muster cron /'
"""
# mark, cron (the one line that is to have it, or nothing)
CRON = r"""
cron_is "$mark" "$cron" || exit 1
"""
