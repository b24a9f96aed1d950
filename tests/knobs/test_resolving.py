"""The five sources of a value, the config file, and the printed configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core import ConfigError, Knob
from stacx_core.knobs import ConfigFile, environment_values, render_config, resolve

KNOBS = (
    Knob("lr", float, 1e-6, "Help.", "optimizer", minimum=0),
    Knob("seed", int, 1, "Help.", "trainer"),
    Knob("num_rollout", int, None, "Help.", "trainer", minimum=1),
    Knob("use_it", bool, False, "Help.", "grpo"),
    Knob("note", str, None, "Help.", "grpo"),
)


def load(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return ConfigFile.load(path)


SOURCES = ["flags", "environment", "config", "recipe_defaults"]


@pytest.mark.parametrize(
    ("first", "origin"),
    [(0, "flag"), (1, "environment"), (2, "config file run.toml"), (3, "recipe default"), (4, "default")],
)
def test_the_first_source_that_has_a_value_wins(first: int, origin: str) -> None:
    """With values 10, 11, 12, 13 in the four sources and 1 as the default, dropping sources moves down the list."""
    given_ = {name: {"seed": 10 + rank} if rank >= first else {} for rank, name in enumerate(SOURCES)}
    args = resolve(KNOBS, **given_, config_path="run.toml")
    assert args.seed == (10 + first if first < 4 else 1)
    assert args.origin("seed") == origin


def test_a_config_file_gives_checked_values(tmp_path: Path) -> None:
    file = load(tmp_path, '[optimizer]\nlr = 1e-5\n[grpo]\nuse_it = true\n[plugins]\nenable = ["grpo"]\n')
    assert file.values(KNOBS, {}) == {"lr": 1e-5, "use_it": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grpo]\nuse_its = true\n", "unknown key 'grpo.use_its' (did you mean 'grpo.use_it'?)"),
        ("[trainer]\nnum_rollouts = 5\n", "unknown key 'trainer.num_rollouts' (did you mean 'trainer.num_rollout'?)"),
        ("[trainer]\nlr = 1e-6\n", "unknown key 'trainer.lr' (it belongs in [optimizer])"),
        ("[optimiser]\nlr = 1e-6\n", "unknown section [optimiser] (did you mean 'optimizer'?)"),
        ('[optimizer]\nlr = "1e-6"\n', "optimizer.lr: expected float, got str '1e-6'; write the number without quotes"),
        ("[optimizer]\nlr = -1\n", "optimizer.lr: -1.0 is below the minimum 0"),
        ("[optimizer]\nlr = nan\n", "optimizer.lr: nan is not a finite number"),
        ("[optimizer]\nlr = 1\nlr = 2\n", "Cannot overwrite a value"),
        ("[optimizer]\nlr = 1\n[optimizer]\nlr = 2\n", "Cannot declare"),
        ("trainer..lr = 1e-6\n", "Invalid"),
        ('[trainer]\n"" = 1\n', "unknown key 'trainer.'"),
        ("[trainer.deep]\nseed = 1\n", "unknown key 'trainer.deep'"),
        ("seed = 1\n", "key 'seed' stands outside a table"),
        ("[[trainer]]\nseed = 1\n", "'trainer'"),
        ("[trainer\n", "line 1"),
    ],
)
def test_a_wrong_config_file_is_refused_with_path_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text).values(KNOBS, {})
    assert message in str(error.value)
    assert "run.toml" in str(error.value)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        ConfigFile.load(tmp_path / "none.toml")


def test_variables_are_parsed_and_others_left_alone() -> None:
    environment = {"STACX_LR": "1e-5", "STACX_USE_IT": "on", "HOME": "/", "STACX_PLUGINS": "grpo"}
    assert environment_values(KNOBS, environment, {}) == {"lr": 1e-5, "use_it": True}


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("STACX_SEDE", "unknown environment variable STACX_SEDE (did you mean 'STACX_SEED'?)"),
        ("STACX_PLUGIN", "did you mean 'STACX_PLUGINS'?"),
        ("STACX_EPS_CLIP", "STACX_EPS_CLIP is a knob of recipe 'grpo', which this run does not use"),
        ("STACX_SEED", "environment variable STACX_SEED: expected int, got 'x'"),
    ],
)
def test_a_wrong_variable_is_refused(variable: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        environment_values(KNOBS, {variable: "x"}, {"STACX_EPS_CLIP": "recipe 'grpo'"})
    assert message in str(error.value)


def values() -> st.SearchStrategy[dict[str, Any]]:
    printable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"))
    return st.fixed_dictionaries(
        {},
        optional={
            "lr": st.floats(min_value=0, allow_infinity=False),
            "seed": st.integers(-(2**63), 2**63 - 1),
            "num_rollout": st.integers(1, 10**9),
            "use_it": st.booleans(),
            "note": printable,
        },
    )


@given(values())
def test_a_printed_configuration_loads_into_the_same_arguments(
    tmp_path_factory: pytest.TempPathFactory, flags: dict[str, Any]
) -> None:
    args = resolve(KNOBS, flags=flags, environment={}, config={}, recipe_defaults={"seed": 5})
    file = load(tmp_path_factory.getbasetemp(), render_config(KNOBS, args))
    again = resolve(KNOBS, flags={}, environment={}, config=file.values(KNOBS, {}), recipe_defaults={"seed": 5})
    assert again == args


def test_the_printed_configuration_shows_the_origin_of_each_value() -> None:
    args = resolve(KNOBS, flags={"lr": 0.5}, environment={}, config={}, recipe_defaults={"use_it": True})
    lines = render_config(KNOBS, args).splitlines()
    assert lines == [
        "[grpo]",
        "use_it = true  # recipe default",
        "# note is unset",
        "",
        "[optimizer]",
        "lr = 0.5  # flag",
        "",
        "[trainer]",
        "seed = 1  # default",
        "# num_rollout is unset",
    ]
