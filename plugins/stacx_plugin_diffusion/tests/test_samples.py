"""What a user looks at: the sheets of a run, and those of `stacx sample`."""

from __future__ import annotations

import pytest
from PIL import Image


def size_of(path):
    """Of a sheet: tiles of 64 x 64 with a caption of 12 and gaps of 2 between, so columns 66 and rows 78."""
    width, height = Image.open(path).size
    assert ((width - 2) % 66, (height - 2) % 78) == (0, 0)
    return (width - 2) // 66, (height - 2) // 78


EVALUATED = ("--eval-prompt-data", "digits:test", "--eval-limit", "11", "--eval-rm-type", "digit_classifier")


def test_evaluations_draw_sheets_and_score_them(train, metrics, tmp_path, recipe):
    done = train(recipe, *EVALUATED, "--eval-interval", "1", "--sample-grid", "10")
    assert done.code == 0, done.err
    sheets = sorted((tmp_path / "run" / "samples").iterdir())
    assert [sheet.name for sheet in sheets] == ["000000.png", "000001.png", "000002.png"]
    assert [size_of(sheet) for sheet in sheets] == [(8, 2)] * 3
    assert sheets[0].read_bytes() != sheets[2].read_bytes()
    lines = metrics(tmp_path / "run")
    assert [line["rollout"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert line["eval/samples"] == 11
        assert 0 < line["eval/reward_mean"] < 1
        assert line["eval/without_reward"] == 0
        assert line["eval/diversity"] > 0


def test_an_evaluation_is_the_same_each_time(train, metrics, tmp_path):
    flags = (*EVALUATED, "--lr", "0", "--eval-interval", "1")
    assert train("flow_grpo", *flags).code == 0
    sheets = [(tmp_path / "run" / "samples" / f"00000{number}.png").read_bytes() for number in range(3)]
    assert sheets[0] == sheets[1] == sheets[2]
    before, *after = [line["eval/reward_mean"] for line in metrics(tmp_path / "run")]
    assert after == [before] * 2
    assert train("flow_grpo", *flags, "--max-states-per-gpu", "2", output="smaller").code == 0
    assert [line["eval/reward_mean"] for line in metrics(tmp_path / "smaller")] == pytest.approx([before] * 3)


def test_no_sheet_and_no_reward(train, metrics, tmp_path):
    assert train("flow_sft", "--eval-prompt-data", "digits:test", "--eval-limit", "3", "--sample-grid", "0").code == 0
    assert not (tmp_path / "run" / "samples").exists()
    assert metrics(tmp_path / "run")[-1]["eval/samples"] == 3
    assert "eval/reward_mean" not in metrics(tmp_path / "run")[-1]


def test_held_out_data_measure_the_loss(train, metrics, tmp_path):
    flags = ("--eval-data", "digits:test", "--eval-limit", "5", "--eval-interval", "1", "--lr", "0")
    assert train("flow_sft", *flags).code == 0
    errors = [line["eval/error"] for line in metrics(tmp_path / "run")]
    assert len(errors) == 3
    assert errors == [errors[0]] * 3


def test_a_sheet_of_a_run(train, stacx, tmp_path):
    assert train("flow_sft", "--ema-decay", "0.5").code == 0
    for number, place in enumerate((".", "checkpoints/latest", "checkpoints/latest/average")):
        output = tmp_path / f"{number}.png"
        done = stacx("sample", tmp_path / "run" / place, "-o", output, "-n", "9")
        assert (done.code, done.out) == (0, f"{output}\n"), done.err
        assert size_of(output) == (8, 2)
    first, second, average = ((tmp_path / f"{number}.png").read_bytes() for number in range(3))
    assert first == second != average


def test_a_sheet_of_a_model(stacx, digits_checkpoint, prompts, tmp_path):
    flags = ("--algorithm", "flow_sft", "--prompt-data", prompts, "--height", "8", "--width", "16")
    done = stacx("sample", digits_checkpoint, "-o", tmp_path / "wide.png", "-n", "2", *flags)
    assert done.code == 0, done.err
    assert Image.open(tmp_path / "wide.png").size == (2 * (128 + 2) + 2, 64 + 2 + 12 + 2)


@pytest.mark.parametrize(
    ("output", "flags", "message"),
    [
        ("x.jpg", (), "end its name in .png"),
        ("nowhere/x.png", (), "there is no folder"),
        ("x.png", ("--height", "7"), "height 7 is no positive multiple of 2 pixels; the nearest is 8"),
        ("x.png", ("--prompt-data", "nosuch.txt"), "'nosuch.txt' does not exist"),
        ("x.png", ("-n", "0"), "0 is not in the range"),
        ("x.png", ("--guidance-scale", "0.5"), "--guidance-scale"),
        ("x.png", ("--eta", "0.5"), "--eta is a knob of recipes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(stacx, digits_checkpoint, prompts, tmp_path, output, flags, message):
    given = ("--algorithm", "flow_sft", "--prompt-data", prompts, "--height", "8", "--width", "8")
    done = stacx("sample", digits_checkpoint, "-o", tmp_path / output, *given, *flags)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / output).exists()


def test_a_prompt_that_the_table_lacks(stacx, digits_checkpoint, tmp_path):
    (tmp_path / "more.txt").write_text("zero\nsevn\n")
    given = ("--algorithm", "flow_sft", "--prompt-data", tmp_path / "more.txt", "--height", "8", "--width", "8")
    done = stacx("sample", digits_checkpoint, "-o", tmp_path / "x.png", *given)
    assert done.code == 2
    assert "has no prompt 'sevn', but near ones: 'seven'" in done.err


def test_a_model_without_prompts_is_asked_for_them(stacx, digits_checkpoint, tmp_path):
    done = stacx("sample", digits_checkpoint, "-o", tmp_path / "x.png", "--algorithm", "flow_sft")
    assert done.code == 2
    assert "name the prompts with --prompt-data" in done.err
