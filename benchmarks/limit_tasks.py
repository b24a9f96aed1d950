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

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stacx_core import load_environment
from stacx_core.swe.agent.actions import bash_block

VERBS = ("bring", "carry", "drop", "fill", "hold", "lend", "lift", "load", "move", "pack", "send", "take")
NOUNS = ("apples", "bags", "books", "bottles", "boxes", "bricks", "chairs", "coats", "crates", "cups", "doors", "drums",
         "eggs", "files", "flags", "forks", "glasses", "hats", "jars", "keys", "lamps", "letters", "maps", "nails",
         "parcels", "pens", "pipes", "plates", "ropes", "sacks", "shirts", "shoes", "spoons", "stones", "tables",
         "tiles", "tins", "tools", "trays", "wheels")  # fmt: skip
FUNCTIONS = 6
LIMITS = range(2, 10)
PIECES = rf"(?:{'|'.join(VERBS)})(?=_)|_(?:{'|'.join(NOUNS)})|\d|-l[et]|ok|refuses|accepts|\n+|```"
"""A token is one of these, or all that stands between two of them."""
END = "<|end|>"
ROLES = [f"<|{role}|>" for role in ("system", "user", "assistant")]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

INSTRUCTION = """\
# A limit that is off by one

Each function of `limits.sh` tells whether a number is within a limit. One of them compares wrongly at its limit. Mend
that one and leave the others as they are. `sh check.sh` tries them all.
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
wrong=0
while read name limit right; do
    if $name $limit; then does=accepts; else does=refuses; fi
    [ $does = $right ] || { echo "$name $does $limit"; wrong=1; }
done < limits.txt
[ $wrong = 1 ] || echo ok
exit $wrong
"""
TESTS = """\
#!/bin/bash
# Writes 1 if every function is right below its limit, at it and above it.
mkdir -p /logs/verifier
cd /tests && reward=1 || exit 1
while read name limit right; do
    for number in $((limit - 1)) $limit $((limit + 1)); do
        if sh -c '. /app/limits.sh; "$1" "$2"' - $name $number; then does=accepts; else does=refuses; fi
        case $((number - limit)) in -1) wanted=accepts ;; 0) wanted=$right ;; 1) wanted=refuses ;; esac
        [ $does = $wanted ] || { echo "$name $number: $does"; reward=0; }
    done
done < limits.txt
echo $reward > /logs/verifier/reward.txt
"""


def write_tasks(folder: Path, training: int, held_out: int, seed: int = 0) -> None:
    """Write tasks, and the names of those that are held out, whose functions have names that are in no other task."""
    draw = random.Random(seed)
    names = [f"{verb}_{noun}" for verb in VERBS for noun in NOUNS]
    draw.shuffle(names)
    share = len(names) // 4
    for number in range(training + held_out):
        own = names[share:] if number < training else names[:share]
        _write_task(folder / f"limits-{number:04}", draw.sample(own, FUNCTIONS), draw)
    listed = [f"limits-{training + number:04}\n" for number in range(held_out)]
    (folder / "held_out.txt").write_text("".join(listed), encoding="utf-8")


def _write_task(folder: Path, names: Sequence[str], draw: random.Random) -> None:
    limits = {name: draw.choice(LIMITS) for name in names}
    accepts = {name: draw.random() < 0.5 for name in names}
    broken = draw.choice(names)
    accepts[broken] = True
    right = "".join(f"{name} {limits[name]} {'accepts' if accepts[name] else 'refuses'}\n" for name in names)
    compared = {name: "-le" if accepts[name] and name != broken else "-lt" for name in names}
    source = "".join(f'{name}() {{ test "$1" {compared[name]} {limits[name]}; }}\n' for name in names)
    files = {
        "instruction.md": INSTRUCTION,
        "task.toml": TOML,
        "environment/Dockerfile": DOCKERFILE,
        "environment/app/limits.sh": source,
        "environment/app/limits.txt": right,
        "environment/app/check.sh": CHECK,
        "tests/test.sh": TESTS,
        "tests/limits.txt": right,
        "solution/solve.sh": f"cd /app && {mended('refuses', broken)}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def mended(does: str, name: str) -> str:
    """The command that changes how a function compares, which now wrongly ``refuses`` or ``accepts`` its limit."""
    change = "-lt/-le" if does == "refuses" else "-le/-lt"
    return f"sed -i /^{name}/s/{change}/ limits.sh"


def expert(observation: str) -> str:
    """Mends the first function that the check finds wrong, submits when it finds none, and else checks."""
    wrong = re.search(r"^(\w+) (refuses|accepts)", observation, re.M)
    if wrong:
        return bash_block(mended(wrong[2], wrong[1]))
    return bash_block("submit" if re.search(r"^ok$", observation, re.M) else "sh check.sh")


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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, unk_token="<unknown>", chat_template=CHAT
    )


def said(tasks: Path) -> list[str]:
    """What is said in the first task of a folder while every kind of mistake is made in it and put right."""
    environment = load_environment(f"harbor:{tasks}")()
    system, user = environment.reset(0)
    everywhere = [bash_block(f"sed -i s/{change}/ limits.sh") for change in ("-lt/-le", "-le/-lt")]
    malformed = ["", "```bash", bash_block("ls") + "\n" + bash_block("ls"), bash_block(" ")]
    check = bash_block("sh check.sh")
    for action in (*malformed[:2], check, *malformed[2:], everywhere[0], check, everywhere[1], check):
        environment.step(action)
    environment.close()
    mends = [bash_block(mended(does, "pack_bags")) for does in ("refuses", "accepts")]
    return [system["content"], environment.render(), bash_block("submit"), *mends]
