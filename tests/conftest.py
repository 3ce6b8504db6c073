"""Set-up of the whole test suite; the rules it enforces are in tests/support/guards.py."""

import os
import signal

from hypothesis import HealthCheck, settings

# A shell starts what it puts into the background with SIGINT ignored, and every process that a test starts would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester", "tests.support.guards"]

# No deadline: two cores and real engines next door. Derandomised: a red run must be red again. `HYPOTHESIS_PROFILE=deep`
# draws fresh examples, many of them.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
