"""Limits that are off by one: tasks for an agent, the expert who mends them, and a student whose tokens are phrases.

In each task one function of a shell script compares with ``-lt`` where ``-le`` is right. ``write_tasks`` writes the
folder for ``--environment harbor:FOLDER``, ``LimitExpert`` is for ``--teacher limit_tasks:LimitExpert``, and
``make_student`` writes an untrained model.
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
PIECES = rf"(?:{'|'.join(VERBS)})(?=_)|_(?:{'|'.join(NOUNS)})|\d|\n+|```"
"""A token is one of these, or all that stands between two of them."""
END = "<|end|>"
ROLES = [f"<|{role}|>" for role in ("system", "user", "assistant")]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

INSTRUCTION = """\
# A limit that is off by one

Each function of `limits.sh` tells whether a number is at most a limit. One of them refuses the limit itself. Mend that
one and leave the others as they are. `sh check.sh` tries them by twos, and `sh check.sh -v` one by one.
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
single={single}
wrong=$(while read one its other others; do
    if [ "$single" ]; then
        $one $its || echo "$one is wrong"
        $other $others || echo "$other is wrong"
    else
        $one $its && $other $others || echo "$one or $other is wrong"
    fi
done < limits.txt)
echo "${{wrong:-ok}}"
[ -z "$wrong" ]
"""
CHECKS = ("$1", "yes")
"""Whether a check tries functions one by one: when it is asked to with ``-v``, or always."""
TESTS = """\
#!/bin/bash
# Writes 1 if every function is right about its limit and the numbers beside it.
mkdir -p /logs/verifier
cd /tests && reward=1 || exit 1
tried() {
    sh -c '. /app/limits.sh; "$1" "$2"' - $1 $2 && does=accepts || does=refuses
    [ $does = $3 ] || { echo "$1 $does $2"; reward=0; }
}
while read name limit; do
    tried $name $((limit - 1)) accepts
    tried $name $limit accepts
    tried $name $((limit + 1)) refuses
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


def _write_task(folder: Path, names: Sequence[str], single: str, draw: random.Random) -> None:
    broken = draw.choice(names)
    limits = {name: draw.randint(5, 99) for name in names}
    tests = {name: f'test "$1" {"-lt" if name == broken else "-le"} {limit}' for name, limit in limits.items()}
    lines = [f"{name} {limit}" for name, limit in limits.items()]
    files = {
        "instruction.md": INSTRUCTION,
        "task.toml": TOML,
        "environment/Dockerfile": DOCKERFILE,
        "environment/app/limits.sh": "".join(f"{name}() {{ {test}; }}\n" for name, test in tests.items()),
        "environment/app/limits.txt": "".join(f"{' '.join(lines[at : at + 2])}\n" for at in range(0, FUNCTIONS, 2)),
        "environment/app/check.sh": CHECK.format(single=single),
        "tests/test.sh": TESTS,
        "tests/limits.txt": "\n".join(lines) + "\n",
        "solution/solve.sh": f"{mend(broken)}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def mend(name: str) -> str:
    """The command that lets a function accept its limit; one that does already stays as it is."""
    return f"sed -i /^{name}/s/-lt/-le/ limits.sh"


class LimitExpert(SolutionExpert):
    """Checks, mends what the check finds wrong, checks again and submits.

    It knows the solution, and so its first mend is right also where the check leaves a choice. Where something has been
    mended and the check leaves a choice still, somebody else chose wrongly: it has the functions tried one by one.
    """

    def answer(self, said: str) -> str:
        """What to do next in a conversation."""
        task, shown = task_in(said, self.tasks), said.rpartition(ROLES[1])[2]
        wrong = re.search(r"^(\w+)( or \w+)? is wrong$", shown, re.M)
        if not wrong:
            return bash_block("submit" if re.search(r"^ok$", shown, re.M) else "sh check.sh")
        if not wrong[2]:
            return bash_block(mend(wrong[1]))
        if "sed -i /^" in said:
            return bash_block("sh check.sh -v")
        return bash_block((task.folder / "solution" / "solve.sh").read_text(encoding="utf-8").strip())


def make_student(folder: Path, tasks: Path, seed: int, width: int = 128, layers: int = 2) -> None:
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
    broken = "sed -i s/-le/-lt/ limits.sh\n"
    worked = map(
        bash_block, ("sh check.sh", "sh check.sh -v", mend("pack_bags"), f"{broken}sh check.sh", "sh check.sh -v")
    )
    for action in (*malformed[:2], next(worked), *malformed[2:], *worked):
        environment.step(action)
    environment.step(bash_block("sed -i s/-lt/-le/ limits.sh; sh check.sh"))
    environment.close()
    return [first[0]["content"], environment.render(), bash_block("submit")]
