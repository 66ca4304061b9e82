"""A provider that misbehaves on demand."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxio.errors import AuthError, ConnectError, CreationError, RateLimitError

CREDENTIAL = "SBX_FAKE_TOKEN"
"""What ``AuthError`` names; no such variable is ever read."""


@dataclass
class Simulation:
    """How the provider misbehaves; the defaults are a provider that does not.

    ``create_takes`` is in virtual seconds. ``times`` counts down the creations that this holds for;
    afterwards the provider is well. None means until the next ``simulate()``.
    """

    create_takes: float = 0.0
    create_fails: BaseException | None = None
    kill_hangs: bool = False
    kill_fails: BaseException | None = None
    auth_missing: bool = False
    rate_limited: float | None = None
    times: int | None = None

    def for_creation(self) -> Simulation:
        """What holds for one more creation."""
        if self.times is None:
            return self
        self.times -= 1
        return self if self.times >= 0 else Simulation()

    def refuse_creation(self) -> None:
        """Raise what a creation meets, if anything."""
        if self.auth_missing:
            raise AuthError(
                f"The fake provider needs a credential, and {CREDENTIAL} is not set.",
                hint=f"export {CREDENTIAL}=...",
            )
        if self.rate_limited is not None:
            error = RateLimitError("The fake provider throttles.")
            error.retry_after = self.rate_limited
            raise error
        if self.create_fails is not None:
            raise CreationError(
                f"The fake provider made no sandbox: {type(self.create_fails).__name__}.",
                hint="This failure was simulated; FakeBackend.simulate() ends it.",
            ) from self.create_fails

    def refuse_kill(self) -> None:
        """Raise what a kill meets, if anything."""
        if self.kill_fails is not None:
            raise ConnectError(
                f"The fake provider refused to end the sandbox: {type(self.kill_fails).__name__}.",
                hint="sandboxio reap --backend fake --kill",
            ) from self.kill_fails
