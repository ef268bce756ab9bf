# SPDX-License-Identifier: Apache-2.0
import faulthandler

import pytest
from gang import Gangs


@pytest.fixture(scope="session")
def ranks():
    """ranks(function, ranks=2, transport="auto", **arguments): runs a case on processes that stay."""
    gangs = Gangs()
    yield gangs
    gangs.end()


@pytest.fixture(autouse=True)
def watchdog():
    """A test that stands still ends, and shows where."""
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
