"""For each invariant: a scenario that holds, and the guards without which it does not."""

import pytest

# A scenario that fails says what it compared, as a test would.
pytest.register_assert_rewrite("tests.guards.scenarios")
