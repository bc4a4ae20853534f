"""Shell scripts, made at random, and what bash hands to `vllm` in them: an oracle for the reader of scripts.

    python -m catalogue.oracle.scripts [--scripts 700] [--seed 1] [--write]

The law: for any setting of a script's free variables, the words that bash hands to a stub in the place of `vllm` are
among the ways that the reader reports, an open part of a word standing for any text and one outside of quotes for any
number of words. Where the caller sets nothing and nothing of the usual way is unknown, they are its words.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftwise.setups.read.shell.open_texts import find_holes
from draftwise.setups.read.shell.script import ScriptRun, Way, run_script

__all__ = ["Stub", "break_law", "draw_script", "draw_settings"]

FREE = ("MODE", "DEBUG", "N", "EXTRA", "MODEL", "TAG")
VALUES = ("", "spec", "plain", "1", "0", "4", "a b", "--seed 3", "x-y.z/w")
NUMBERS = ("", "0", "1", "4", "12")
"""Of a variable that is reckoned with: bash drops a command in which something else is."""
NAMES = ("k", "m", "n", "o", "p")
LITERALS = ("spec", "plain", "4", "1", "a-b", "x/y.z", "--seed")
RESULTS = Path(__file__).parent / "scripts_result.json"


_DEEP = frozenset(["if", "case", "for", "while", "define", "subshell", "pipe", "while-args", "count", "until", "group"])
"""Statements that hold others."""


class _Writer:
    """Draws a script from what serve scripts are made of."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.functions: list[str] = []

    def pick(self, items: Sequence[str]) -> str:
        return self.rng.choice(items)

    def variable(self) -> str:
        return self.pick((*NAMES, *NAMES, *FREE))

    def value(self) -> str:
        """Return the right side of an assignment, or a word in double quotes without them."""
        name, other, text = self.variable(), self.variable(), self.pick(LITERALS)
        forms = [
            text, text, f"${name}", f"${{{name}:-{text}}}", f"${{{name}-{text}}}", f"${{{name}:+{text}}}",
            f"{text}-${{{name}}}", f"${{{name}:-${{{other}:-{text}}}}}", f"${{{name}%-*}}", f"${{{name}##*/}}",
            f"${{{name}#*-}}", f"${{{name}%%.*}}", f"${{{name}/a/b}}", f"${{{name}^^}}", f"${{{name}:0:2}}",
            f"${{#{name}}}", f"${{{name}+{text}}}", f"${{{name}:-}}", f"$(( {self.rng.randrange(9)} + 2 ))",
            "$(( ${N:-3} * 2 ))", f"$(echo {text})", f"${{1:-{text}}}", f"${{{name}//-/_}}", f"${{{name},,}}",
        ]  # fmt: skip
        return self.pick(forms)

    def condition(self) -> str:
        name, text = self.variable(), self.pick(LITERALS)
        forms = [
            f'[ "${name}" = {text} ]', f'[ "${{{name}:-plain}}" = "{text}" ]', f'[[ ${name} == {text} ]]',
            f'[[ "${{{name}:-}}" == s* ]]', f'[ -n "${name}" ]', f'[ -z "${{{name}:-}}" ]', f'[[ -n ${name} ]]',
            f'[ "${name}" != {text} ]', f'[[ "${name}" =~ ^s ]]', "true", "false", f'! [ "${name}" = {text} ]',
            '[ "${N:-4}" -gt 2 ]', f'[[ -z "${name}" || "${name}" == {text} ]]', "[ -d /nowhere ]", "grep -q x f",
            f'[ -n "${name}" ] && [ "${name}" != {text} ]', '(( ${N:-2} > 1 ))', "[ $# -gt 0 ]", "command -v nothing",
            f'[[ -n "${name}" && ! "${name}" = {text} ]]', 'test "$DEBUG" = 1',
        ]  # fmt: skip
        return self.pick(forms)

    def statement(self, depth: int) -> Iterator[str]:
        kinds = (
            ["assign"] * 6 + ["array"] * 4 + ["and", "and", "or", "colon", "if", "if", "case", "case", "for", "export"]
        )
        kinds += ["while", "call", "define", "subshell", "set", "eval", "pipe", "launch", "read", "while-args", "exit"]
        kinds += ["here", "local-call", "index", "unset", "env", "nested", "options", "source", "reference", "words"]
        kinds += ["count", "split", "until", "trap", "group"]
        kind = self.pick(kinds)
        if depth <= 0 and kind in _DEEP:
            kind = "assign"
        yield from getattr(self, "_" + kind.replace("-", "_"))(depth)

    def block(self, depth: int) -> Iterator[str]:
        for _ in range(self.rng.randint(1, 2)):
            yield from ("  " + line for line in self.statement(depth))

    def _assign(self, _depth: int) -> Iterator[str]:
        name = self.pick(NAMES)
        quote = self.pick(('"', '"', ""))
        yield f"{name}{self.pick(('=', '=', '+='))}{quote}{self.value()}{quote}"

    def _array(self, _depth: int) -> Iterator[str]:
        name = self.variable()
        forms = [
            f'args+=(--x "${name}")', "args+=($EXTRA)", 'args=("${args[@]}" --y)', f'args+=(--z "{self.value()}")',
            "args=()", f"args+=(${{{name}:+--w ${name}}})", f'args+=(${{{name}:+--w "${name}"}})', "args+=(--v)",
            f"args+=(${{{name}:---u 1}})", 'args+=("${args[0]}")', "args=(${args[@]})", 'args+=("${#args[@]}")',
        ]  # fmt: skip
        yield self.pick(forms)

    def _and(self, _depth: int) -> Iterator[str]:
        yield f"{self.condition()} && {next(self._simple())}"

    def _or(self, _depth: int) -> Iterator[str]:
        yield f"{self.condition()} || {next(self._simple())}"

    def _simple(self) -> Iterator[str]:
        yield from self.rng.choice((self._assign, self._array))(0)

    def _colon(self, _depth: int) -> Iterator[str]:
        name = self.variable()
        yield f': "${{{name}{self.pick((":=", "="))}{self.pick(LITERALS)}}}"'

    def _if(self, depth: int) -> Iterator[str]:
        yield f"if {self.condition()}; then"
        yield from self.block(depth - 1)
        if self.rng.random() < 0.4:
            yield f"elif {self.condition()}; then"
            yield from self.block(depth - 1)
        if self.rng.random() < 0.5:
            yield "else"
            yield from self.block(depth - 1)
        yield "fi"

    def _case(self, depth: int) -> Iterator[str]:
        name = self.variable()
        yield f'case "{self.pick((f"${name}", f"${{{name}:-plain}}", f"${{{name},,}}"))}" in'
        for pattern in self.rng.sample(("spec|1", "plain", "s*", '""', "[0-9]", "a?b", "*x*"), self.rng.randint(1, 3)):
            yield f"  {pattern})"
            yield from ("  " + line for line in self.block(depth - 1))
            yield f"    {self.pick((';;', ';;', ';;', ';;', ';&', ';;&'))}"
        if self.rng.random() < 0.5:
            yield "  *)"
            yield from ("  " + line for line in self.block(depth - 1))
            yield "    ;;"
        yield "esac"

    def _for(self, depth: int) -> Iterator[str]:
        name = self.pick(NAMES)
        yield f"for {name} in {self.pick(('a b', '1 2 3', 'x $N y', '$EXTRA', chr(34) + '${args[@]}' + chr(34)))}; do"
        yield from self.block(depth - 1)
        if self.rng.random() < 0.3:
            yield f"  {self.condition()} && {self.pick(('break', 'continue'))}"
        yield "done"

    def _while(self, _depth: int) -> Iterator[str]:
        yield f"i={self.pick(('0', '1', '${N:-0}'))}"
        yield 'while [ "$i" -lt 3 ]; do'
        yield from self.block(0)
        yield "  i=$((i + 1))"
        yield "done"

    def _while_args(self, _depth: int) -> Iterator[str]:
        yield "while [[ $# -gt 0 ]]; do"
        yield '  case "$1" in --k) k="$2"; shift 2 ;; --m=*) m="${1#*=}"; shift ;; *) args+=("$1"); shift ;; esac'
        yield "done"

    def _define(self, depth: int) -> Iterator[str]:
        name = f"f{len(self.functions)}"
        yield f"{name}() {{"
        yield '  local o="${1:-none}"'
        yield from self.block(depth - 1)
        if self.rng.random() < 0.4:
            yield f"  {self.condition()}" + self.pick(("", " && return 1", " || return 0"))
        yield "}"
        self.functions.append(name)

    def _call(self, _depth: int) -> Iterator[str]:
        if self.functions:
            yield f"{self.pick(self.functions)} {self.pick(('', 'spec', chr(34) + '$MODE' + chr(34)))}"
        else:
            yield from self._assign(0)

    def _local_call(self, _depth: int) -> Iterator[str]:
        if self.functions:
            yield f"if {self.pick(self.functions)} 4; then k=yes; else k=no; fi"
        else:
            yield from self._array(0)

    def _subshell(self, depth: int) -> Iterator[str]:
        yield "("
        yield from self.block(depth - 1)
        yield ")"

    def _pipe(self, _depth: int) -> Iterator[str]:
        yield "echo one | while read -r q; do"
        yield from self.block(0)
        yield "done"

    def _set(self, _depth: int) -> Iterator[str]:
        yield self.pick(("set -- spec 4", 'set -- "$@" --t', "shift", 'set -- "$MODE" $EXTRA', "set -e", "set -u +u"))

    def _eval(self, _depth: int) -> Iterator[str]:
        yield self.pick(('eval "k=\\$m"', 'eval "n=$TAG"', "eval 'm=2'", 'c="vllm serve e --k $k"; eval "$c"'))

    def _read(self, _depth: int) -> Iterator[str]:
        yield self.pick(('read -r k <<< "in $TAG"', "read -r n o < /dev/null", 'printf -v p "%s-x" "$k"', "let n=2+2"))

    def _exit(self, _depth: int) -> Iterator[str]:
        yield f"{self.condition()} && exit 0" if self.rng.random() < 0.5 else 'n="${TAG:?needed}"'

    def _here(self, _depth: int) -> Iterator[str]:
        yield "cat > /dev/null <<EOF"
        yield "vllm serve $k ${m:-x}"
        yield "EOF"

    def _index(self, _depth: int) -> Iterator[str]:
        yield from ("declare -A t=([spec]=4 [plain]=1)", f'k="${{t[{self.pick(("spec", "$MODE", "none"))}]:-0}}"')

    def _unset(self, _depth: int) -> Iterator[str]:
        yield f"unset {self.variable()}"

    def _export(self, _depth: int) -> Iterator[str]:
        yield f'export {self.pick(NAMES)}="{self.value()}"'

    def _env(self, _depth: int) -> Iterator[str]:
        yield f'k=9 vllm serve "${self.variable()}" $k'

    def _nested(self, _depth: int) -> Iterator[str]:
        forms = (
            'bash -c \'vllm serve "$0" "$@"\' "$k" --n $m',
            'bash -c "vllm serve $k ${m:-none}"',
            "export k\nbash -c 'vllm serve \"${k:-no}\"'",
        )
        yield self.pick(forms)

    def _options(self, _depth: int) -> Iterator[str]:
        yield "OPTIND=1"
        yield 'while getopts "k:m:v" opt; do'
        yield '  case "$opt" in k) k="$OPTARG" ;; m) m="$OPTARG" ;; v) args+=(--v) ;; *) exit 2 ;; esac'
        yield "done"
        yield self.pick(("shift $((OPTIND - 1))", "shift $((OPTIND-1)) || true"))

    def _source(self, _depth: int) -> Iterator[str]:
        name, text = self.pick(NAMES), self.pick(LITERALS)
        yield self.pick((f"echo '{name}={text}' > e.env", f'printf \'{name}="%s"\\n\' "{self.value()}" > e.env'))
        yield self.pick((". ./e.env", "source e.env", "set -a; . ./e.env; set +a", "[ -f e.env ] && . ./e.env"))

    def _reference(self, _depth: int) -> Iterator[str]:
        name = self.pick(NAMES)
        forms = (
            f"declare -n r={name}; r={self.pick(LITERALS)}; unset -n r", f'which={name}; p="${{!which}}"',
            f"setit() {{ local -n out=$1; out={self.pick(LITERALS)}; }}; setit {name}",
            f'eval "{name}=\\"\\${self.variable()}\\""',
        )  # fmt: skip
        yield self.pick(forms)

    def _words(self, _depth: int) -> Iterator[str]:
        name = self.variable()
        forms = (
            f"k=$(printf '%s-%s' x \"${name}\")", f'm="$(basename "${{{name}:-a/b}}")"', 'set -- "${@:2}"',
            'args=("${args[@]:1}")', 'k="${args[*]}"', "n=$(( ${N:-1} > 2 ? 4 : 8 ))", 'p="${*:-none}"',
            f'o=${{{name}/#s/t}}', f'o="${{{name}%/}}"', f"k=`echo {self.pick(LITERALS)}`", '[[ $# -gt 1 ]] && shift 2',
            f'args+=("--s=${name}")', 'args=(${args[@]+"${args[@]}"} --q)', f"readonly RO_{len(self.functions)}=1",
            f'k="${{{name}@Q}}"', 'n="${#args[@]}"', f'm=$(tr a-z A-Z <<< "${name}")', 'p=${k:+${m:-x}}',
        )  # fmt: skip
        yield self.pick(forms)

    def _count(self, _depth: int) -> Iterator[str]:
        yield f"for (( i = 0; i < {self.rng.randrange(4)}; i++ )); do"
        yield from self.block(0)
        yield f"  {self.pick(('args+=(--i $i)', 'k=$i', '(( n += i ))', 'n=$((n + i)) || true'))}"
        yield "done"

    def _split(self, _depth: int) -> Iterator[str]:
        text = self.pick(("$TAG", "a,b,c", "$k"))
        yield f'IFS=, read -r{self.pick(("a parts", " m o"))} <<< "{text}"'
        yield self.pick(('args+=("${parts[@]}")', 'k="${parts[0]:-x}"', "mapfile -t parts < <(printf '%s\\n' a b)"))

    def _until(self, _depth: int) -> Iterator[str]:
        yield "j=0"
        yield f"until {self.pick(('[ $j -ge 2 ]', '(( j > 1 ))', '[[ $j == 2 ]]'))}; do"
        yield from self.block(0)
        yield "  (( ++j ))"
        yield "done"

    def _trap(self, _depth: int) -> Iterator[str]:
        yield self.pick(("trap 'echo bye' EXIT", "trap cleanup INT TERM", "true || m=never", "false || k=always"))

    def _group(self, depth: int) -> Iterator[str]:
        yield self.pick(("{", f"{self.condition()} && {{", f"{self.condition()} || {{"))
        yield from self.block(depth - 1)
        yield self.pick(("}", "} > log 2>&1", "} || true"))

    def _launch(self, _depth: int) -> Iterator[str]:
        name = self.variable()
        yield self.pick(
            (
                f'vllm serve "${name}" "${{args[@]}}"',
                f'exec vllm serve m --k "${{{name}:-4}}" "$@"',
                f"vllm serve m --k ${name} &",
            )
        )

    def write(self) -> str:
        lines = ["args=()"] if self.rng.random() < 0.8 else []
        lines += (
            f'{name}="{self.value() if self.rng.random() < 0.4 else self.pick(LITERALS)}"'
            for name in NAMES
            if self.rng.random() < 0.85
        )
        for _ in range(self.rng.randint(3, 9)):
            lines += self.statement(2)
        lines.append(
            f'vllm serve "$m" --k $k "${{args[@]}}" --spec "{{\\"n\\":${{n:-4}}}}" --o "${{o:-{self.pick(LITERALS)}}}"'
        )
        return "\n".join(lines) + "\n"


def draw_script(rng: random.Random, *, closed: bool = False) -> str:
    """Return a script that serves a model, one way or another; a closed one sets all variables that it reads."""
    names = (*FREE, *NAMES) if closed else ()
    given = [f"{name}='{rng.choice(NUMBERS if name == 'N' else VALUES)}'\n" for name in names] + [
        "set -- a 'b c'\n"
    ] * closed
    return "".join(given) + _Writer(rng).write()


def draw_settings(rng: random.Random, count: int) -> Iterator[dict[str, str]]:
    """Yield values of free variables, nothing set first."""
    yield {}
    for _ in range(count - 1):
        yield {name: rng.choice(NUMBERS if name == "N" else VALUES) for name in FREE if rng.random() < 0.5}


@dataclass(slots=True)
class Stub:
    """A folder with a `vllm` that notes its arguments, and bash in it."""

    folder: Path
    scripts: int = 0
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        program = self.folder / "bin" / "vllm"
        program.parent.mkdir()
        program.write_text('#!/bin/sh\nprintf "%s\\0" "$@" "$(printf "\\001")" >> "$STUB_OUT"\n', encoding="utf-8")
        program.chmod(0o755)
        (self.folder / "work").mkdir()
        self.path = program.parent

    def run(self, script: str, setting: Mapping[str, str]) -> list[list[str]] | None:
        """Return the arguments of each `vllm` that bash starts; None where the script does not end."""
        self.scripts += 1
        out = self.folder / f"out{self.scripts}"
        env = {**setting, "PATH": f"{self.path}:/usr/bin:/bin", "STUB_OUT": str(out)}
        try:
            subprocess.run(
                ["bash", "-c", script + "wait\n", "serve.sh"], env=env, cwd=self.folder / "work", timeout=10,
                capture_output=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        if not out.exists():
            return []
        calls: list[list[str]] = [[]]
        for word in out.read_bytes().decode().split("\0")[:-1]:
            if word == "\1":
                calls.append([])
            else:
                calls[-1].append(word)
        out.unlink()
        return calls[:-1]


def get_ways(run: ScriptRun, depth: int = 0) -> Iterator[tuple[Way, bool]]:
    """Yield the ways in which `vllm` is started, each with whether more of them are left out."""
    for command in run.commands:
        for way in command.ways:
            texts = [word.text for word in way.words]
            if "vllm" in texts:
                yield way, command.is_partial
            elif texts[:2] == ["bash", "-c"] and depth < 3 and len(way.words) > 2:
                from draftwise.setups.read.shell.launch import get_exported

                inner = way.words[2]
                arguments = [word.source or word.text for word in way.words[3:]]
                inside = get_ways(
                    run_script(inner.source or inner.text, env=get_exported(way), arguments=arguments), depth + 1
                )
                # words that expand to nothing do not reach the inner shell
                yield from ((each, partial or bool(way.assumed)) for each, partial in inside)


def to_pattern(way: Way) -> re.Pattern[str]:
    """Return what the arguments of a way look like, each followed by a NUL."""
    parts: list[str] = []
    words = [word.text for word in way.open_words]
    for word in words[words.index("vllm") + 1 :]:
        pattern, splits = "", False
        for char in word:
            marks = find_holes(char)
            if not marks:
                pattern += re.escape(char)
            elif way.open_words[0].holes[char].splits:
                pattern, splits = pattern + "[\\s\\S]*", True
            else:
                pattern += "[^\\x00]*"
        parts.append(
            f"(?:{pattern}\\x00)?" if splits and re.fullmatch(r"(?:\[\\s\\S\]\*)+", pattern) else f"{pattern}\\x00"
        )
    return re.compile("".join(parts))


def break_law(script: str, setting: Mapping[str, str], calls: Sequence[Sequence[str]], counts: Counter[str]) -> str:
    """Return how a script breaks the law; empty where it does not."""
    ways = list(get_ways(run_script(script)))
    patterns = [to_pattern(way) for way, _ in ways]
    for call in calls:
        text = "".join(f"{word}\0" for word in call)
        found = [way for (way, _), pattern in zip(ways, patterns, strict=True) if pattern.fullmatch(text)]
        if found:
            exact = any([word.text for word in way.words][-len(call) :] == list(call) for way in found if call)
            counts["told as they are" if exact else "open"] += 1
            if not (setting or exact or any(word.unknown for way in found for word in way.words)):
                return f"bash hands over {call} where nothing is set, and the ways are {_tell(found)}"
        elif any(partial for _, partial in ways):
            counts["left out"] += 1
        else:
            return f"bash hands over {call}, and the ways are {_tell(way for way, _ in ways)}"
    return ""


def _tell(ways: Iterable[Way]) -> list[list[str]]:
    return [[word.text for word in way.words] for way in ways]


def main() -> None:
    """Hold the reader against bash, and write what came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=int, default=700)
    parser.add_argument("--settings", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shown", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the counts in scripts_result.json")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    counts: Counter[str] = Counter()
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        stub = Stub(Path(folder))
        for number in range(asked.scripts):
            script = draw_script(rng, closed=number % 2 == 1)
            for setting in draw_settings(rng, asked.settings):
                calls = stub.run(script, setting)
                if calls is None:
                    counts["did not end"] += 1
                    continue
                fault = break_law(script, setting, calls, counts)
                if fault:
                    broken += 1
                    if broken <= asked.shown:
                        print(f"--- script {number}, {setting}\n{script}\n{fault}\n")
                    break
    result = {
        "scripts": asked.scripts,
        "settings": asked.settings,
        "seed": asked.seed,
        "broken": broken,
        **dict(sorted(counts.items())),
    }
    print(json.dumps(result))
    if asked.write:
        runs = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
        runs = [*(run for run in runs if run["seed"] != asked.seed), result]
        lines = ",\n".join(json.dumps(run) for run in sorted(runs, key=lambda run: run["seed"]))
        RESULTS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
