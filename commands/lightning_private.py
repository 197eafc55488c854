"""The uses of private parts of Lightning by commands; `models.trained` has the others.

pyproject.toml bounds the minor version of Lightning for them. tests/commands/test_lightning_private.py has a test of
each, which fails when a library changes it.
"""

from typing import Any

from jsonargparse import Namespace
from pytorch_lightning.cli import LightningCLI


class PublicCLI(LightningCLI):
    """LightningCLI with public names for the private parts that a subclass uses."""

    @property
    def settings(self) -> Namespace:
        """Parsed settings of the chosen command, such as `fit`."""
        settings: Namespace = self.config[self.config.subcommand]
        return settings

    @property
    def objects(self) -> Namespace:
        """Settings of the chosen command, with objects in place of `class_path` and `init_args`."""
        objects: Namespace = self.config_init[self.config.subcommand]
        return objects

    @property
    def plain_settings(self) -> dict[str, Any]:
        """Settings of the chosen command in plain types, as written to `config.yaml`."""
        self._dump_config()
        plain: dict[str, Any] = self.config_dump
        return plain

    def parser_of(self, command: str) -> Any:  # noqa: ANN401 # of the class that a subclass gives
        """Return the parser of one command of the command line, which can be used without that of all commands."""
        parser = self._subcommand_parsers[command]
        vars(parser).pop("parent_parser", None)  # to which it would leave --print_config
        return parser

    def attach(self, parser: Any) -> None:  # noqa: ANN401
        """Let a parser of `parser_of` find the instantiators of Lightning, which the parser of all commands has.

        They note the settings of a model as its hyperparameters, from which a checkpoint is loaded.
        """
        parser.parent_parser = self.parser

    def run_command(self) -> None:
        """Run the chosen command; the constructor of LightningCLI calls this last."""
        super()._run_subcommand(self.config.subcommand)

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_command()

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would silently replace the config's hyperparameters by the checkpoint's."""
