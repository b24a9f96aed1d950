"""Limits that are off by one: tasks for an agent, the expert who mends them, and a student whose tokens are phrases.

In each task one function of a shell script compares with ``-lt`` where ``-le`` is right. ``write_tasks`` writes the
folder for ``--environment harbor:FOLDER``, ``expert`` is for ``--teacher limit_tasks:expert``, and ``make_student``
writes an untrained model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stacx_core import load_environment
from stacx_core.swe.agent.actions import bash_block
from stacx_core.swe.agent.expert import SolutionExpert, task_in

VERBS = ("bring", "carry", "drop", "fill", "hold", "lend", "lift", "load", "move", "pack", "send", "take")
NOUNS = ("apples", "bags", "books", "bottles", "boxes", "bricks", "chairs", "coats", "crates", "cups", "doors",
         "eggs", "flags", "hats", "jars", "keys", "lamps", "maps", "pens", "plates", "ropes", "shoes", "tools",
         "wheels")  # fmt: skip
FUNCTIONS = 4
OPERATORS = {
    ("lowest", "accepts"): "-ge",
    ("lowest", "refuses"): "-gt",
    ("highest", "accepts"): "-le",
    ("highest", "refuses"): "-lt",
}
"""How a function compares at an end of its range, by what it does with the number there."""
NAMES = rf"(?:{'|'.join(VERBS)})(?=_)|_(?:{'|'.join(NOUNS)})"
PIECES = rf"{NAMES}|\d|-[gl]\./-[gl][et]|(?:refuses|accepts) its (?:lowest|highest) number|\n+|```"
"""A token is one of these, or all that stands between two of them."""
END = "<|end|>"
ROLES = [f"<|{role}|>" for role in ("system", "user", "assistant")]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

INSTRUCTION = """\
# A range that is off by one

Each function of `limits.sh` tells whether a number is in a range, whose ends may belong to it or not. One of them
refuses a number at an end that it is to accept. Mend that one and leave the others as they are. `sh check.sh` tries
them all, and `sh check.sh -v` says at which end they are wrong.
"""
DOCKERFILE = "FROM debian:12\nWORKDIR /app\nCOPY app/ /app/\n"
TOML = """\
version = "1.0"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 30.0
[environment]
memory_mb = 128
storage_mb = 16
"""
CHECK = """\
. ./limits.sh
verbose={verbose}
wrong=$(while read name end number right; do
    if $name $number; then does=accepts; else does=refuses; fi
    [ $does = $right ] || if [ "$verbose" ]; then echo "$name $does its $end number"; else echo "$name is wrong"; fi
done < limits.txt | uniq)
echo "${{wrong:-ok}}"
[ -z "$wrong" ]
"""
CHECKS = ("$1", "yes")
"""Whether a check says at which end a function is wrong: when it is asked for with ``-v``, or always."""
TESTS = """\
#!/bin/bash
# Writes 1 if every function is right at its ends, on both sides of them.
mkdir -p /logs/verifier
cd /tests && reward=1 || exit 1
while read name end number right; do
    inside=1 outside=-1
    [ $end = highest ] && inside=-1 outside=1
    for case in "$number $right" "$((number + inside)) accepts" "$((number + outside)) refuses"; do
        set -- $case
        if sh -c '. /app/limits.sh; "$1" "$2"' - $name $1; then does=accepts; else does=refuses; fi
        [ $does = $2 ] || { echo "$name $1: $does"; reward=0; }
    done
done < limits.txt
echo $reward > /logs/verifier/reward.txt
"""


def write_tasks(folder: Path, training: int, held_out: int) -> None:
    """Write tasks with each of ``CHECKS`` in turn; no function of a held-out one has a name that is trained on."""
    draw = random.Random(0)
    names = [f"{verb}_{noun}" for verb in VERBS for noun in NOUNS]
    draw.shuffle(names)
    share = len(names) // 4
    for number in range(training + held_out):
        own = names[share:] if number < training else names[:share]
        _write_task(folder / f"limits-{number:04}", draw.sample(own, FUNCTIONS), CHECKS[number % 2], draw)
    listed = [f"limits-{training + number:04}\n" for number in range(held_out)]
    (folder / "held_out.txt").write_text("".join(listed), encoding="utf-8")


def _write_task(folder: Path, names: Sequence[str], verbose: str, draw: random.Random) -> None:
    broken = (draw.choice(names), draw.choice(("lowest", "highest")))
    limits, source = "", ""
    for name in names:
        numbers = {"lowest": draw.randint(1, 9), "highest": draw.randint(12, 20)}
        does = {end: draw.choice(("accepts", "refuses")) for end in numbers}
        if name == broken[0]:
            does[broken[1]] = "accepts"
        limits += "".join(f"{name} {end} {number} {does[end]}\n" for end, number in numbers.items())
        does |= {end: "refuses" for end in numbers if (name, end) == broken}
        tests = (f'test "$1" {OPERATORS[end, does[end]]} {number}' for end, number in numbers.items())
        source += f"{name}() {{ {' && '.join(tests)}; }}\n"
    files = {
        "instruction.md": INSTRUCTION,
        "task.toml": TOML,
        "environment/Dockerfile": DOCKERFILE,
        "environment/app/limits.sh": source,
        "environment/app/limits.txt": limits,
        "environment/app/check.sh": CHECK.format(verbose=verbose),
        "tests/test.sh": TESTS,
        "tests/limits.txt": limits,
        "solution/solve.sh": f"{mend(*broken, 'accepts')}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def mend(name: str, end: str, does: str) -> str:
    """The command that lets a function do as it is to do with the number at an end, whatever it did."""
    operator = OPERATORS[end, does]
    return f"sed -i /^{name}/s/{operator[:2]}./{operator}/ limits.sh"


class LimitExpert(SolutionExpert):
    """Checks, mends what the check finds wrong, checks again and submits.

    It knows the solution, and so the first mend is right whatever the check says. A function that is wrong for another
    reason has been changed by somebody else: unless the last check told at which end, it asks with ``-v``.
    """

    def answer(self, said: str) -> str:
        """What to do next in a conversation."""
        task, shown = task_in(said, self.tasks), said.rpartition(ROLES[1])[2]
        wrong = re.search(r"^(\w+) (?:is wrong|(\w+) its (\w+) number)$", shown, re.M)
        if not wrong:
            return bash_block("submit" if re.search(r"^ok$", shown, re.M) else "sh check.sh")
        name, does, end = wrong.groups()
        if end:
            return bash_block(mend(name, end, {"accepts": "refuses", "refuses": "accepts"}[does]))
        solution = (task.folder / "solution" / "solve.sh").read_text(encoding="utf-8").strip()
        known = f"/^{name}/" in solution and f"sed -i /^{name}/" not in said
        return bash_block(solution if known else "sh check.sh -v")


def make_student(folder: Path, tasks: Path, seed: int, width: int = 64, layers: int = 2) -> None:
    """Write an untrained Llama, and its tokenizer, which knows what is said in a task of a folder."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer(said(tasks))
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    split = Split(Regex(PIECES), behavior="isolated")
    pieces = {piece for text in texts for piece, _ in split.pre_tokenize_str(text)}
    words = {*pieces, *VERBS, *(f"_{noun}" for noun in NOUNS), *map(str, range(10))}
    vocabulary = {piece: i for i, piece in enumerate([END, "<unknown>", *ROLES, *sorted(words)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (END, *ROLES)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, unk_token="<unknown>", chat_template=CHAT)


def said(tasks: Path) -> list[str]:
    """What is said in the first task of a folder while every kind of mistake is made in it and put right."""
    environment = load_environment(f"harbor:{tasks}")()
    first: Any = environment.reset(0)
    malformed = ["", "```bash", bash_block("ls") + "\n" + bash_block("ls"), bash_block(" ")]
    solution = (tasks / "limits-0000" / "solution" / "solve.sh").read_text(encoding="utf-8")
    everywhere = [f"sed -i s/{operator[:2]}./{operator}/ limits.sh\n" for operator in OPERATORS.values()]
    checked = ["sh check.sh", f"{solution}sh check.sh", *(f"{command}sh check.sh -v" for command in everywhere)]
    worked = [bash_block(command) for command in (*checked, "sh check.sh -v")]
    for action in (*malformed[:2], worked[0], *malformed[2:], *worked[1:]):
        environment.step(action)
    environment.close()
    mends = [bash_block(mend("pack_bags", *case)) for case in OPERATORS]
    return [first[0]["content"], environment.render(), bash_block("submit"), *mends]
