import pytest

from attention import EncoderError, EncoderSpec, resolve


@pytest.fixture
def _bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default encoder on disk; a hub is never asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        resolve(EncoderSpec())
    except EncoderError as error:
        pytest.skip(f"needs the default encoder, which the extra `demo` installs: {error}")
