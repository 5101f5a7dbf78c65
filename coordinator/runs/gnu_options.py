"""GNU Parallel's options as they are here: other spellings of those that there are, and what to do in place of all
others. Decides nothing else."""

from __future__ import annotations

from muster.coordinator.runs import wish

_ALONE = "items run by themselves and have no terminal"
_BLOCKS = "cut the file first: `split -n l/100 FILE part.`, then `muster run … ::: part.*`; stdin is empty"
_COLOURED = "--tag begins each line with the item's values"
_COUNTED = "`muster agents` shows what each machine lends"
_GROUPED = "an item's output is printed whole when it ends, and kept; leave the option out"
_LENDS = "the agent says what a machine lends: `agent set cpus=…`, `agent join --memory …`"
_MACHINES = "machines join by themselves: `agent join` on each; --workdir or files as items bring the work there"
_MEANT = "that is so here anyhow; leave it out"
_PACKED = "one item is one command: `xargs -n 10 echo COMMAND <FILE | muster run` makes such with several words each"
_PLACES = "the placeholder is {}; `muster run --help` has all"
_PREPARED = "prepare the list of items before it comes here, with `sed`, `grep` or `tail`"
_READ = "values are never read by a shell here, so nothing need be quoted"
_RETIRED = "GNU Parallel has retired it too; leave it out"
_SCRIPT = "write a script of the shell that calls `muster run`"
_STORED = "the farm keeps its own store: `muster status`"
_TRAVELS = "items that name files below the current folder travel by themselves; `--return NAME` brings {out} back"

_ADVICE: dict[str, str] = {
    _ALONE: "--tmux --tmux-pane --fg --bg --wait --semaphore --sem --semaphore-timeout --st --semaphore-name --id --tty"
    " --open-tty -o -p --interactive",
    _BLOCKS: "--pipe --pipe-part --spreadstdin --block --block-size --block-timeout --bt --recstart --recend --regexp"
    " --regex --remove-rec-sep --rrs --round-robin --round --cat --fifo --tee --shard --bin --group-by",
    _COLOURED: "--tag-string --ctag --ctag-string --color --colour --color-failed --colour-failed --color-fail"
    " --colour-fail --cf",
    _COUNTED: "--number-of-cpus --number-of-sockets --number-of-cores --number-of-threads --show-limits"
    " --max-line-length-allowed",
    _GROUPED: "-u --ungroup --lb --line-buffer --line-buffered --latest-line --ll --compress --use-compress-program"
    " --compress-program --use-decompress-program --decompress-program --tmpdir --tempdir",
    _LENDS: "--nice --memfree --memsuspend --load --noswap --limit --use-sockets-instead-of-threads"
    " --use-cores-instead-of-threads --use-cpus-instead-of-cores",
    _MACHINES: "-S --sshlogin --slf --sshloginfile --onall --nonall --ssh --ssh-delay --controlmaster -M --filter-hosts"
    " --filter-host --hgrp --hostgrp --hostgroup --hostgroups --rsync-opts",
    _MEANT: "--group --silent --no-keep-order --nok --no-k --gnu --will-cite --bibtex --citation --nn --nonotice",
    _PACKED: "-X -m --xargs -n -N -L -l --max-args --max-replace-args --max-lines -s --max-chars -x --exit",
    _PLACES: "-I -i --replace --rpl --parens --plus --extensionreplace --er --basenamereplace --bnr --dirnamereplace"
    " --dnr --basenameextensionreplace --bner --seqreplace",
    _PREPARED: "--trim -E -e --eof --skip-first-line --filter",
    _READ: "-q --quote --shellquote",
    _RETIRED: "-g -B -H -T -U -W -Y --sql --ctrl-c --no-ctrl-c --tollef",
    _SCRIPT: "--shebang --hashbang --shebang-wrap --embed --_parset",
    _STORED: "--sql-master --sql-worker --sql-and-worker",
    _TRAVELS: "--tf --transfer-file --transfer-files --transfer --trc --cleanup --bf --basefile --template --tmpl",
    "records end with a line; `tr` makes lines of others, -0 takes NUL": "-d --delimiter",
    "--colsep , cuts at each comma; `source: {table: FILE}` in a job file knows quotes": "--csv",
    "write `:::+` or `::::+` for a source that goes along with the last": "--link --xapply --linkinputsource"
    " --xapplyinputsource",
    "the sources begin with ::: and ::::; quote such a word of the command": "--arg-sep --arg-file-sep",
    "--results DIR keeps what each item prints as files": "--files --output-as-files",
    "--resume runs what has not ended with 0, and so what failed too": "--resume-failed",
    "--bar, or `muster watch JOB` in another window": "--eta --progress --total-jobs --total",
    "--dry-run prints the commands, --joblog keeps them": "-v -t --verbose",
    "take empty lines out first: `grep . | muster run …`": "-r --no-run-if-empty",
    "the slot's number is each machine's own: name what must differ by {#}": "--slotreplace --process-slot-var",
    "`shuf FILE | muster run …`": "--shuf",
    "-j says how many run at once": "--delay",
    "what is late is asked to end by SIGTERM, and made to 2 seconds later": "--term-seq",
    "--env NAME gives a variable of here, once for each": "--record-env --session",
    "`run:` in ~/.config/muster/config.yaml has options for all runs, and an empty MUSTER_CONFIG none": "--profile -J"
    " --plain",
    "`muster --version`": "-V --version --min-version",
    "`muster completion bash` prints what a shell needs": "--shell-completion",
    "`muster logs JOB` has what went wrong": "-D --debug --bug",
}
_SPELLINGS = {"dr": "dry-run", "jl": "joblog", "res": "results", "result": "results", "haltonerror": "halt"}


def _squeezed(option: str) -> str:
    """There a dash between two words of a name may be left out."""
    name = option.lstrip("-")
    return name.replace("-", "").replace("_", "") if option.startswith("--") else option


_INSTEAD = {_squeezed(option): advice for advice, options in _ADVICE.items() for option in options.split()}
_KNOWN = {
    _squeezed(name): name[2:] for one in wish.options() for name in one.metadata["names"] if name.startswith("--")
}


def spelled(name: str) -> str:
    """A long name without its dashes, as it is spelled here; what nobody knows stays as it is."""
    squeezed = _squeezed(f"--{name}")
    return name if len(name) == 1 else _KNOWN.get(squeezed) or _SPELLINGS.get(squeezed) or name


def instead(option: str) -> str | None:
    """What to do in place of an option that GNU Parallel has; None for one that it has not either."""
    return _INSTEAD.get(_squeezed(option))
