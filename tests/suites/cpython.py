"""Runs CPython's own tests one after another and writes what became of each to a file as it happens.

    cpython.py RESULTS SKIP NAME...

Lines of RESULTS: `start ID`, then `pass`, `skip`, `fail` or `error` and the same ID; `end` when all have run. The file
is opened for each line, so that the tests see no descriptor of ours, and so that the line of a test which hangs or
crashes the interpreter is there. Tests whose ID is a line of the file SKIP are left out. A NAME is a module, a class or
a method, as for `python3 -m unittest`.
"""

import faulthandler
import os
import sys
import unittest

from test import support

# What needs the outside world, a display, or gigabytes.
LACKING = {"audio", "gui", "largefile", "network", "tzdata", "urlfetch"}


def main():
    results, skip, *names = sys.argv[1:]
    with open(skip) as file:
        done = set(file.read().split("\n"))
    faulthandler.enable(sys.__stderr__)
    from test.libregrtest.cmdline import ALL_RESOURCES

    support.use_resources = [name for name in ALL_RESOURCES if name not in LACKING]
    support.verbose = 1
    support.use_style = False
    # The paths of results are absolute: some tests change the directory.
    record = Record(os.path.abspath(results))
    suite = unittest.TestSuite(without(load(names, record), done))
    unittest.TextTestRunner(
        stream=sys.stderr, verbosity=2, resultclass=lambda *args: Result(record, *args)
    ).run(suite)
    record("end")


def load(names, record):
    for name in names:
        try:
            yield from flat(unittest.defaultTestLoader.loadTestsFromName(name))
        except unittest.SkipTest:
            record("skip", name)


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def without(tests, done):
    return [test for test in tests if test.id() not in done]


class Record:
    def __init__(self, path):
        self.path = path
        self.lines = []

    def __call__(self, *words):
        self.lines.append(" ".join(words) + "\n")
        try:
            with open(self.path, "a") as file:
                file.writelines(self.lines)
        except OSError:
            # A test has used up the descriptors: the next line takes this one along.
            return
        self.lines = []


class Result(unittest.TextTestResult):
    def __init__(self, record, *args):
        super().__init__(*args)
        self.record = record

    def startTest(self, test):
        super().startTest(test)
        self.record("start", test.id())

    def addSuccess(self, test):
        super().addSuccess(test)
        self.record("pass", test.id())

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.record("skip", test.id())

    def addError(self, test, error):
        super().addError(test, error)
        self.record("error", test.id())

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.record("fail", test.id())

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.record("fail", test.id())

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.record("pass", test.id())

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.record("fail", test.id())


if __name__ == "__main__":
    main()
