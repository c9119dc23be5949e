"""A mistake in the configuration is named with file, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.config import ConfigError, load_config


@pytest.mark.parametrize(("text", "says"), [
    ("components: {env_server: {port: true}}", "components.env_server.port: True is not allowed: a number is needed"),
    ("components: {prm_judge: {vote_timeout: on}}", "vote_timeout: True is not allowed: a number is needed"),
    ("components: {trainer: {grpo: {group_timeout: 800}}}", "components: `trainer.grpo.group_timeout` is 800 and must "
     "be at least `env_server.episodes.timeout`, 900"),
    ("components: {env_server: {episodes: {timeout: 3600}}, policy_server: {api_keys: [sk-no]}}",
     "^((?!sk-no).)*`trainer.grpo.group_timeout` is 1800 .* `env_server.episodes.timeout`, 3600((?!sk-no).)*$"),
    ("journal: {max_size: yes}", "journal.max_size: True is not allowed: a number is needed"),
    ("components: {trainer: {update_interval: .inf}}", "update_interval: inf is not allowed: .* finite"),
    ("components: {trainer: {learning_rate: .nan}}", "learning_rate: nan is not allowed: .* finite"),
    ("components:\n  trainer:\n", "components.trainer: None is not allowed: a mapping of keys is needed"),
    ("mode: local\nmode: local_simulate\n", "the key mode is there twice .*line 2"),
    ("a: " + "[" * 5000, "nested too deeply"),
    ("components: {trainer: {min_sample: 3}}", "trainer.min_sample: unknown key; allowed here: .*min_samples"),
    ("components: {policy_server: {model: ''}}", "policy_server.model: '' is not allowed: .*at least 1 character"),
    ("- a", "must be a mapping of keys, not a list"),
])
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        load_config(file)
    assert str(error.value).startswith(str(file))


def test_the_line_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("mode: local\ncomponents:\n  trainer:\n    min_samples: 4\n    learning_rte: 1e-4\n"
                    "  prm_judge: {<<: {votes: no}}\njournl: 5\n")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert [line.partition(";")[0].removeprefix(f"{file}:") for line in str(error.value).splitlines()] == [
        "6: components.prm_judge.votes: False is not allowed: a number is needed",
        "5: components.trainer.learning_rte: unknown key", "7: journl: unknown key"]
    assert "Did you mean learning_rate?" in str(error.value) and "Did you mean journal?" in str(error.value)


def test_merged_keys_may_be_overridden(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("components: {env_server: &any {port: 0}, prm_judge: {<<: *any, votes: 2}, "
                    "trainer: {<<: *any, port: 7}}")
    components = load_config(file).components
    assert (components.prm_judge.port, components.prm_judge.votes, components.trainer.port) == (0, 2, 7)
