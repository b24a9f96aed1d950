"""Prompt sources, malformed rows, and the order of prompts."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import date
from itertools import count
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.prompts import PromptRow, PromptStream, fingerprint, load_prompts
from stacx_core.data.sample import Sample
from stacx_core.errors import CheckpointError, ConfigError, DataError

RECORDS = [{"question": "1+1?", "answer": "2", "level": 1}, {"question": "2+3?", "answer": "5", "level": 2}]
MESSAGES = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]


def load(source: Path | str, label_key: str | None = "answer", seed: int = 0) -> list[PromptRow]:
    return load_prompts(str(source), input_key="question", label_key=label_key, seed=seed)


def jsonl(folder: Path, text: str | bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def check_records(rows: list[PromptRow]) -> None:
    assert [(row.prompt, row.label, row.index, row.metadata) for row in rows] == [
        ("1+1?", "2", 0, {"level": 1}),
        ("2+3?", "5", 1, {"level": 2}),
    ]


def test_jsonl_with_blank_lines(tmp_path: Path) -> None:
    text = '{"question": "1+1?", "answer": "2", "level": 1}\n\n{"question": "2+3?", "answer": 5, "level": 2}\n'
    rows = load(jsonl(tmp_path, text))
    check_records(rows)
    assert rows[1].where.endswith("data.jsonl, line 3")


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist(RECORDS), path)
    rows = load(path)
    check_records(rows)
    assert rows[1].where.endswith("data.parquet, row 2")


def test_parquet_with_messages(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist([{"question": MESSAGES}]), path)
    assert load(path, None)[0].prompt == MESSAGES


def test_hugging_face_dataset_folder(tmp_path: Path) -> None:
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "set")
    check_records(load(tmp_path / "set"))


def test_a_folder_of_splits_asks_for_one_of_them(tmp_path: Path) -> None:
    split = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match="several splits: test, train"):
        load(tmp_path / "set")
    check_records(load(tmp_path / "set" / "train"))


def test_messages_and_rows_without_label(tmp_path: Path) -> None:
    row = load(jsonl(tmp_path, '{"question": [{"role": "user", "content": "Hi", "name": null}]}'), None)[0]
    assert row.prompt == [{"role": "user", "content": "Hi"}]
    assert row.label is None


def test_reasoning_gym_is_reproducible_and_carries_its_entry() -> None:
    source = "reasoning_gym:chain_sum?size=3&max_terms=2&min_terms=2"
    rows = load(source, seed=4)
    assert rows == load(source, seed=4)
    assert len(rows) == 3
    assert [row.prompt for row in rows] != [row.prompt for row in load(source, seed=5)]
    assert load(source + "&seed=4", seed=5)[0].prompt == rows[0].prompt
    assert rows[0].metadata["dataset"] == "chain_sum"
    assert rows[0].metadata["entry"]["answer"] == rows[0].label
    assert rows[0].metadata["entry"]["metadata"]["num_terms"] == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("reasoning_gym:chain_sums", "no data set 'chain_sums' .did you mean 'chain_sum'"),
        ("reasoning_gym:chain_sum?nope=1", "unexpected keyword argument 'nope'"),
        ("reasoning_gym:chain_sum?min_terms=0", "min_terms"),
        ("reasoning_gym:chain_sum?size=0", "size|no row"),
    ],
)
def test_a_wrong_reasoning_gym_source_is_named(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(source)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 2: not JSON"),
        (b"\xff\xfe", "line 2: not UTF-8"),
        ("[" * 200_000, "line 2: not JSON"),
        ("[1]", "line 2: a row must be an object with named fields, not list"),
        (
            '{"qestion": "1", "answer": "2"}',
            "line 2: no field 'question' .*did you mean 'qestion'.*'qestion', 'answer'",
        ),
        ('{"question": "1"}', "line 2: no field 'answer' .label_key.; fields there: 'question'"),
        (
            '{"question": 1, "answer": "2"}',
            "line 2: 'question' must be a string or a list of chat messages, not int",
        ),
        ('{"question": null, "answer": "2"}', "not NoneType"),
        ('{"question": "  ", "answer": "2"}', "line 2: 'question' is empty"),
        ('{"question": [], "answer": "2"}', "line 2: 'question' has no message"),
        (
            '{"question": ["hi"], "answer": "2"}',
            "message 1 must be an object with 'role' and 'content', not str",
        ),
        (
            '{"question": [{"role": "user"}], "answer": "2"}',
            "message 1: 'content' must be a string, not NoneType",
        ),
        (
            r'{"question": "1 \ud800", "answer": "2"}',
            r"line 2: the prompt or the label holds '\\ud800', half a surrogate",
        ),
        (r'{"question": "1", "answer": "\udfff2"}', r"line 2: the prompt or the label holds '\\udfff'"),
        (r'{"question": [{"role": "user", "content": "\ud83d"}], "answer": "2"}', r"holds '\\ud83d'"),
        ('{"question": "1", "answer": NaN}', "line 2: 'answer' is nan; a label must be finite"),
        ('{"question": "1", "answer": null}', "line 2: 'answer' must be a string or a number, not NoneType"),
        ('{"question": "1", "answer": true}', "line 2: 'answer' must be a string or a number, not bool"),
        ('{"question": "1", "answer": ["2"]}', "not list"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, line: str | bytes, message: str) -> None:
    good = b'{"question": "1+1?", "answer": "2"}\n'
    with pytest.raises(DataError, match=message) as caught:
        load(jsonl(tmp_path, good + (line.encode() if isinstance(line, str) else line)))
    assert "data.jsonl, line 2" in str(caught.value)


def test_a_malformed_parquet_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"question": ["a", None], "answer": ["1", "2"]}), path)
    with pytest.raises(DataError, match=r"data\.parquet, row 2: 'question' must be a string"):
        load(path)


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_text("no")
    with pytest.raises(DataError, match=r"data\.parquet is damaged, or not what its name says: "):
        load(path)


def test_a_damaged_page_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=1, compression="none")
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = path.read_bytes()
    path.write_bytes(content[:offset] + b"\xff" * 8 + content[offset + 8 :])
    with pytest.raises(DataError, match=r"data\.parquet is damaged, or not what its name says: "):
        load(path)


def test_a_damaged_dataset_folder_is_named(tmp_path: Path) -> None:
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "set")
    file = next((tmp_path / "set").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match="set is damaged, or not what its name says: "):
        load(tmp_path / "set")


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    assert load(jsonl(tmp_path, r'{"question": "\ud83d\ude00", "answer": "2"}'))[0].prompt == "\U0001f600"


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no row"):
        load(jsonl(tmp_path, "\n"))


def test_a_missing_file_is_named_with_its_nearest_sibling(tmp_path: Path) -> None:
    jsonl(tmp_path, "")
    with pytest.raises(DataError, match=r"does not exist \(did you mean 'data.jsonl'\?\)"):
        load(tmp_path / "dat.jsonl")


def test_unknown_kinds_of_source_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"suffix '.csv'; it must be one of .jsonl, .parquet"):
        load(tmp_path / "data.csv")
    with pytest.raises(DataError, match="is a folder, but not one"):
        load(tmp_path)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'stacx-core\[reasoning-gym\]'"):
        load("reasoning_gym:chain_sum")
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "set")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'stacx-core\[data\]'"):
        load(tmp_path / "set")


def rows(count: int) -> list[PromptRow]:
    return [PromptRow(f"prompt {index}", None, index) for index in range(count)]


def stream(count: int, seed: int = 0, shuffle: bool = True) -> PromptStream[PromptRow]:
    return PromptStream(rows(count), seed, shuffle)


def indices(taken: list[PromptRow]) -> list[int]:
    return [row.index for row in taken]


def test_every_epoch_is_a_permutation_of_its_own() -> None:
    prompts = stream(12)
    first, second = indices(prompts.take(12)), indices(prompts.take(12))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


def test_without_shuffling_the_order_of_the_source_repeats() -> None:
    assert indices(stream(3, shuffle=False).take(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_data_smaller_than_a_batch_crosses_epochs() -> None:
    taken = indices(stream(2).take(7))
    assert [sorted(taken[start : start + 2]) for start in (0, 2, 4)] == [[0, 1]] * 3


def test_a_run_resumed_in_the_second_epoch_sees_the_same_prompts() -> None:
    unbroken = stream(12, seed=3)
    for _ in range(4):
        unbroken.take(4)
    resumed = stream(12, seed=3)
    resumed.restore(unbroken.state())
    assert (unbroken.state()["epoch"], unbroken.state()["position"]) == (1, 4)
    assert [indices(resumed.take(4)) for _ in range(4)] == [indices(unbroken.take(4)) for _ in range(4)]


@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_the_order_does_not_depend_on_how_it_is_taken(size: int, before: int, after: int, seed: int) -> None:
    whole = indices(stream(size, seed).take(before + after))
    broken = stream(size, seed)
    assert indices(broken.take(before)) == whole[:before]
    resumed = stream(size, seed)
    resumed.restore(broken.state())
    assert indices(resumed.take(after)) == whole[before:]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (stream(11), "the number of prompt rows was 12 and is 11"),
        (PromptStream(rows(13)[1:], 0, True), "the fingerprint of the prompts was [0-9a-f]{16} and is [0-9a-f]{16}"),
        (stream(12, seed=7), "--seed was 0 and is 7"),
        (stream(12, shuffle=False), "--rollout-shuffle was True and is False"),
    ],
)
def test_resuming_with_another_order_of_prompts_is_refused(other: PromptStream[PromptRow], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"cannot resume with other prompts: {message}"):
        other.restore(stream(12).state())
    assert other.state()["position"] == 0


def test_the_fingerprint_is_of_what_the_rows_hold_and_of_their_order() -> None:
    row = PromptRow("1+1?", "2", 0, {"level": 1, "day": date(2024, 1, 2)}, "here.jsonl, line 1")
    elsewhere = replace(row, where="there.jsonl, line 3")
    others = [replace(row, prompt="1+2?"), replace(row, label="3"), replace(row, metadata={"level": 2})]
    assert fingerprint([row]) == fingerprint([elsewhere])
    assert len({fingerprint([row]), *(fingerprint([other]) for other in others)}) == 4
    assert fingerprint([row, others[0]]) != fingerprint([others[0], row])


def test_the_fingerprint_is_the_same_in_every_process_and_reads_tensors_in_nested_rows() -> None:
    assert fingerprint([PromptRow("1+1?", "2", 0)]) == "fa18299c131158e6"

    reads = count()

    def pair(pixel: int) -> tuple[Sample, Sample]:
        sample = Sample(tokens=[1, 2], metadata={"image": torch.tensor([pixel]), "no JSON": object()})
        return sample, replace(sample, is_chosen=False, task_id=f"read {next(reads)}")

    assert fingerprint([pair(1)]) == fingerprint([pair(1)]) != fingerprint([pair(2)])


def test_a_stream_needs_a_row() -> None:
    with pytest.raises(DataError, match="has no row"):
        PromptStream([], 0, True)
