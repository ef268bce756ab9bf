# SPDX-License-Identifier: Apache-2.0
"""The tools do what they are for, on a repository and a build folder made for the purpose."""

import json
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import sanitize  # noqa: E402

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


class ChecksTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        shutil.copytree(TOOLS, self.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_check(self, name, *arguments):
        command = [sys.executable, str(self.root / f"tools/check_{name}.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_a_lower_level_is_allowed(self):
        self.write("src/engine/a.cpp", LICENCE + '#include "fsdp/comm/world.hpp"\n#include <torch/torch.h>\n')
        self.assertEqual(self.run_check("levels"), (0, ""))

    def test_a_sibling_is_refused(self):
        self.write("src/layout/a.cpp", LICENCE + '#include "schedule/b.hpp"\n')
        code, text = self.run_check("levels")
        self.assertEqual(code, 1)
        self.assertIn("src/layout/a.cpp:2: layout (level 1) includes schedule (level 1)", text)

    def test_a_folder_without_a_floor_is_refused(self):
        self.write("src/comm/gloo/a.hpp", "")
        self.write("src/comm/carrier_pigeon/a.hpp", "")
        self.assertEqual(
            self.run_check("levels"),
            (1, "src/comm/carrier_pigeon: has no floor; add it to FLOORS in tools/check_levels.py\n"),
        )

    def test_language_models_in_the_core_are_refused_and_in_the_program_are_not(self):
        self.write("src/engine/a.cpp", LICENCE + '#include "fsdp/models/gpt.hpp"\n')
        self.write("apps/fsdp/a.cpp", LICENCE + '#include "fsdp/models/gpt.hpp"\n')
        code, text = self.run_check("levels")
        self.assertEqual(code, 1)
        self.assertIn("src/engine/a.cpp:2: engine is in the core, yet includes models", text)
        self.assertNotIn("apps/", text)

    def test_torch_in_a_torch_free_module_is_refused(self):
        self.write("src/layout/a.cpp", "#include <ATen/core/Tensor.h>\n")
        self.assertIn("layout is torch-free", self.run_check("levels")[1])

    def test_all_of_torch_in_a_public_header_is_refused(self):
        self.write("include/fsdp/engine/a.hpp", "#include <torch/torch.h>\n")
        self.assertIn("a public header includes torch/torch.h", self.run_check("levels")[1])

    def test_a_reference_without_a_note_is_found(self):
        self.write("src/base/a.cpp", "// NOTE [one]: text\n// See NOTE [one], see NOTE\n// [two words].\n")
        code, text = self.run_check("notes")
        self.assertEqual(code, 1)
        self.assertIn("src/base/a.cpp:2: no file holds NOTE [two words]", text)
        self.assertNotIn("[one]", text)

    def test_a_missing_licence_line_an_unlisted_header_and_variable_are_found(self):
        self.write("tests/golden/public_headers.txt", "")
        self.write("include/fsdp/base/a.hpp", "#pragma once\n")
        self.write("docs/reference/environment.md", "`FSDP_LOG`\n")
        self.write("src/base/a.cpp", LICENCE + 'getenv("FSDP_LOG"); getenv("FSDP_NEW");\n')
        text = self.run_check("files")[1]
        self.assertIn("include/fsdp/base/a.hpp:1: the first lines lack", text)
        self.assertIn("lacks fsdp/base/a.hpp", text)
        self.assertIn("src/base/a.cpp:2: docs/reference/environment.md does not name FSDP_NEW", text)
        self.assertNotIn("FSDP_LOG", text)

    def test_a_page_quotes_an_example_as_it_is(self):
        self.write("examples/a.cpp", "int main() {\n  // begin body\n  run();\n  // end body\n}\n")
        self.write("docs/a.md", "<!-- quote examples/a.cpp body -->\n```cpp\nold();\n```\n")
        self.write("README.md", "<!-- quote examples/a.cpp none -->\n```cpp\n```\n")
        text = self.run_check("snippets")[1]
        self.assertIn("README.md:2: examples/a.cpp has no section none", text)
        self.assertIn("docs/a.md:2: differs from examples/a.cpp, section body", text)
        self.write("README.md", "")
        self.assertEqual(self.run_check("snippets", "--fix"), (0, ""))
        self.assertIn("```cpp\nrun();\n```\n", (self.root / "docs/a.md").read_text())
        self.assertEqual(self.run_check("snippets"), (0, ""))

    def test_other_blocks_are_compiled_with_what_is_given(self):
        quoted = "<!-- quote examples/a.cpp body -->\n```cpp\nquoted();\n```\n"
        self.write("docs/a.md", quoted + "text\n\n<!-- given\nint n = 1;\n-->\n```cpp\nuse(n);\n```\n")
        code, _ = self.run_check("snippets", "--compile", str(self.root / "out.cpp"))
        text = (self.root / "out.cpp").read_text()
        self.assertEqual(code, 0)
        self.assertIn(f'#line 8 "{self.root}/docs/a.md"\nint n = 1;\n', text)
        self.assertIn(f'#line 11 "{self.root}/docs/a.md"\nuse(n);\n', text)
        self.assertNotIn("quoted", text)

    def test_a_member_that_a_text_names_exists(self):
        self.write("include/fsdp/a/box.hpp", "/// See Box::width() and Box::depth().\nstruct Box { int width; };\n")
        self.write("docs/how-to/a.md", "`Box::width`, `Box.height`, `at::Box::grad()`\n```\nBox::code\n```\n")
        self.write("docs/decisions/0001-a.md", "`Box::old`\n")
        code, text = self.run_check("names")
        self.assertEqual(code, 1)
        self.assertIn("include/fsdp/a/box.hpp:1: Box has no member depth", text)
        self.assertIn("docs/how-to/a.md:1: Box has no member height", text)
        self.assertEqual(text.count("\n"), 2)

    def test_a_skip_needs_a_line_with_a_reason(self):
        self.write("tests/skips.txt", "# why\nHosts.* needs root\n")
        self.write(
            "tests.xml",
            '<testsuite name="L"><testcase name="hosts_test" status="run"><system-out>'
            "[ RUN      ] Hosts.Meet\na_test.cpp:9: Skipped\nno root\n[  SKIPPED ] Hosts.Meet (0 ms)\n"
            "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[ RUN      ] Oracle.Agrees\na_test.cpp:9: Skipped\n"
            "no Python\n\n[  SKIPPED ] Oracle.Agrees (0 ms)\n[  SKIPPED ] Oracle.Agrees\n"
            '</system-out></testcase><testcase name="model" status="notrun"><system-out/></testcase></testsuite>',
        )
        report = str(self.root / "tests.xml")
        code, text = self.run_check("skips", report)
        self.assertEqual((code, text.count("skipped")), (0, 3))
        code, text = self.run_check("skips", "--strict", report)
        self.assertEqual(code, 1)
        self.assertNotIn("Hosts.Meet", text)
        self.assertIn("skipped Oracle.Agrees: no Python, and tests/skips.txt does not list it", text)
        self.assertIn("skipped model: notrun, and", text)
        self.write("tests/skips.txt", "Hosts.* needs root\nOracle.* no\nmodel large\n")
        self.assertEqual(self.run_check("skips", "--strict", report)[0], 0)
        self.write("tests/skips.txt", "Hosts.*\n")
        self.assertIn("'Hosts.*' has no reason", self.run_check("skips", report)[1])

    def test_the_fault_table_follows_the_tests(self):
        page = "| id | fault | tests |\n|---|---|---|\n| 20 | a group of one | open |\n"
        self.write("docs/reference/faults.md", page)
        self.write("tests/parity/a_test.cpp", "TEST(EngineTest, Fault020_IsAnIdentity) {}\n")
        self.assertIn("stale", self.run_check("faults")[1])
        self.assertEqual(self.run_check("faults", "--fix")[0], 0)
        self.assertIn("`EngineTest.Fault020_IsAnIdentity`", (self.root / "docs/reference/faults.md").read_text())
        self.assertEqual(self.run_check("faults"), (0, ""))

    def test_planted_bugs_fit_and_stand_in_the_list_of_their_module(self):
        def bug(name, file, old):
            return {"name": name, "file": file, "old": old, "new": "", "tests": []}

        self.write("src/optim/a.cpp", "x = 1; y = 2; y = 2;")
        self.write("include/fsdp/optim/a.hpp", "z = 3;")
        right = [bug("one", "src/optim/a.cpp", "x = 1"), bug("two", "include/fsdp/optim/a.hpp", "z")]
        self.write("tests/mutation/mutants/optim.json", json.dumps(right))
        self.assertEqual(self.run_check("mutants"), (0, ""))
        wrong = [bug("three", "src/optim/a.cpp", "y = 2"), bug("one", "src/optim/gone.cpp", "x")]
        self.write("tests/mutation/mutants/engine.json", json.dumps(wrong))
        code, text = self.run_check("mutants")
        self.assertEqual(code, 1)
        self.assertIn("engine.json: 'three': its text is 2 times in src/optim/a.cpp, must be once", text)
        self.assertIn("'three': is about src/optim/a.cpp, so it belongs into tests/mutation/mutants/optim.json", text)
        self.assertIn("engine.json: 'one': its text is 0 times in src/optim/gone.cpp, must be once", text)
        self.assertIn("'one': there are two of this name", text)


class ApiPagesTest(unittest.TestCase):
    """The reference shows what a caller sees."""

    HEADER = """
        // SPDX-License-Identifier: Apache-2.0
        /// Boxes.
        #pragma once

        #include <vector>

        namespace fsdp::a {

        class Other;

        /// A box, of a[i] < b. @throws Error kIo
        /// @memory none
        ///
        ///     Box box{1};
        class Box {
         public:
          explicit Box(std::vector<int> sizes) : sizes_(std::move(sizes)), n_{1} { init(); }
          /// Width and
          /// height.
          int width() const { return sizes_[0]; }
          int height() const;
          struct Inner {
            int seen = {0};  ///< so often
           private:
            int unseen;
          };

         private:
          void init();
          std::vector<int> sizes_;
          int n_;
        };

        namespace detail {
        struct Hidden {};
        }  // namespace detail

        template <class T>
          requires requires(T t) { t.box(); }
        Box box(const T& of) {
          return of.box();
        }
        int bare();

        }  // namespace fsdp::a
    """

    def test_comments_stay_with_what_they_are_about_and_the_rest_is_not_shown(self):
        import api_pages

        header = textwrap.dedent(self.HEADER).lstrip()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fsdp/a/box.hpp"
            path.parent.mkdir(parents=True)
            path.write_text(header)
            with mock.patch.object(api_pages, "INCLUDE", Path(folder)), self.assertLogs(api_pages.log) as logged:
                text = api_pages.pages()["reference/api/a.md"]
                index = api_pages.pages()["reference/api/index.md"]
        self.assertIn("A box, of a\\[i\\] \\< b.\n\n* **Throws** Error kIo\n* **Memory** none\n", text)
        self.assertIn("```cpp\nBox box{1};\n```", text)
        self.assertIn("  explicit Box(std::vector<int> sizes);\n  /// Width and\n  /// height.\n", text)
        self.assertIn("  int width() const;\n  int height() const;\n  struct Inner {\n", text)
        self.assertIn("    int seen = {0};  ///< so often\n  };\n};\n", text)
        self.assertIn("requires requires(T t) { t.box(); }\nBox box(const T& of);\nint bare();\n", text)
        for hidden in ("init", "sizes_", "unseen", "Hidden", "Other"):
            self.assertNotIn(hidden, text)
        self.assertIn("| [`bare`](a.md#box-bare) | a |", index)
        self.assertEqual(logged.records[0].getMessage(), "include/fsdp/a/box.hpp:38: box, bare has no comment")


class SelectTestsTest(unittest.TestCase):
    """./dev test -R x and ./dev test Suite.Name on a build folder made for the purpose."""

    def setUp(self):
        self.build = Path(tempfile.mkdtemp()).resolve()
        self.addCleanup(shutil.rmtree, self.build)
        tests = self.build / "tests"
        tests.mkdir()
        (self.build / "build.ninja").touch()
        entries = []
        for name, text in {
            "layout_test": "TEST(Layout, IsEqual) {}\nTEST_P(Sizes, Add) {}\n",
            "ranks_test": "TYPED_TEST_P(Contract, Sums) {}\nTEST(Mesh, Fault033_IsRefused) {}\n",
        }.items():
            (tests / f"{name}.cpp").write_text(text)
            output = f"tests/CMakeFiles/{name}.dir/{name}.cpp.o"
            entries.append({"file": str(tests / f"{name}.cpp"), "output": output})
        (self.build / "compile_commands.json").write_text(json.dumps(entries))
        (tests / "CTestTestfile.cmake").write_text(
            f'add_test([=[layout_test]=] "{self.build}/bin/layout_test")\n'
            f'add_test([=[example.ranks2]=] "{self.build}/bin/fsdp" "run" "--" "{self.build}/bin/example")\n'
            'add_test([=[lint_files]=] "python3" "check_files.py")\n'
            'set_tests_properties([=[lint_files]=] PROPERTIES  LABELS "lint" TIMEOUT "60")\n'
            'add_test([=[package]=] "cmake" "-P" "run.cmake")\n'
        )

    def select(self, *arguments, listing=""):
        command = [sys.executable, str(TOOLS / "select_tests.py"), arguments[0], str(self.build), *arguments[1:]]
        done = subprocess.run(command, input=listing, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.split() if done.returncode == 0 else done.stderr

    def listing(self, *names):
        return "".join(f"  Test  #{i}: {name}\n" for i, name in enumerate(names)) + f"Total Tests: {len(names)}\n"

    def test_what_the_selected_tests_run_is_built_and_nothing_else(self):
        names = ("layout_test", "example.ranks2", "lint_files")
        wanted = ["bin/example", "bin/fsdp", "bin/layout_test"]
        self.assertEqual(self.select("targets", listing=self.listing(*names)), (0, wanted))
        self.assertEqual(self.select("targets", listing=self.listing("lint_files")), (0, []))

    def test_a_test_that_names_no_program_needs_all(self):
        self.assertEqual(self.select("targets", listing=self.listing("layout_test", "package")), (0, ["all"]))

    def test_a_case_is_found_by_suite_name_and_pattern_whatever_its_parameters(self):
        code, words = self.select("cases", "Sizes.Add")
        self.assertEqual((code, words[0]), (0, "bin/layout_test"))
        self.assertEqual(words[1], "Sizes.Add:Sizes.Add/*:Sizes/*.Add:*/Sizes.Add:*/Sizes.Add/*:*/Sizes/*.Add")
        self.assertEqual(self.select("cases", "*.Fault033*")[1][0], "bin/ranks_test")
        self.assertEqual(self.select("cases", "Layout", "Contract")[1][::2], ["bin/layout_test", "bin/ranks_test"])

    def test_a_case_that_is_not_there_is_answered_with_near_names(self):
        code, text = self.select("cases", "Layout.IsEqal")
        self.assertEqual(code, 1)
        self.assertIn("no test case matches 'Layout.IsEqal'; near it: Layout.IsEqual", text)


class SanitizeTest(unittest.TestCase):
    """./dev test --sanitized over a runner and a builder made for the purpose."""

    RUNNER = """
        if [[ "$*" == *-N* ]]; then
          for i in 0 1 2 3 4 5; do printf '  Test #%d: t%d\\n' $((i + 1)) $i; done
          exit 0
        fi
        for bad in $bad; do [[ "$*" != *"^$bad\\$"* ]] || { echo "$text"; exit "$code"; }; done
        sleep "$run_s"
    """

    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(TOOLS, self.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for name, script in (("ctest", self.RUNNER), ("cmake", 'sleep "$build_s"')):
            path = self.root / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("#!/usr/bin/env bash\n" + textwrap.dedent(script))
            path.chmod(0o755)
        build = self.root / "build" / "asan"
        build.mkdir(parents=True)
        (build / "build.ninja").touch()
        lines = (f'add_test([=[t{i}]=] "{build.resolve()}/bin/t{i}")' for i in range(6))
        (build / "CTestTestfile.cmake").write_text("\n".join(lines))

    def share(self, *options, bad="", code=0, text="", run_s=0, build_s=0):
        done = subprocess.run(
            [sys.executable, "tools/sanitize.py", "share", *options, "build/asan"],
            cwd=self.root,
            env={"bad": bad, "code": str(code), "text": text, "run_s": str(run_s), "build_s": str(build_s),
                 "PATH": f"{self.root}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def order(self, text):
        return [line.split()[1] for line in text.splitlines() if line.endswith("passed")]

    def test_each_seed_has_another_order_and_each_test_its_turn(self):
        code, text = self.share("--seed", "a")
        self.assertEqual(code, 0, text)
        self.assertIn("asan: 6 of 6 tests, 0 failed (seed a)", text)
        self.assertEqual(self.order(self.share("--seed", "a")[1]), self.order(text))
        firsts = {sanitize.in_order([f"t{i}" for i in range(6)], str(seed))[0] for seed in range(60)}
        self.assertEqual(len(firsts), 6)

    def test_it_ends_when_its_time_is_up(self):
        code, text = self.share("--seed", "a", "--run", "42", run_s=1)
        self.assertEqual(code, 0, text)
        self.assertIn("asan: 2 of 6 tests", text)  # a third is expected to take 40 s
        code, text = self.share("--seed", "a", "--build", "6", build_s=4)
        self.assertEqual(code, 0, text)
        self.assertIn("asan: 1 of 6 tests", text)

    def test_what_a_plain_build_says_of_a_test_counts(self):
        report = self.root / "build/release/tests.xml"
        report.parent.mkdir()
        report.write_text('<testsuite><testcase name="t3" time="100"/></testsuite>')
        text = self.share("--seed", "a")[1]
        self.assertIn("asan: 5 of 6 tests", text)
        self.assertNotIn("t3", self.order(text))

    def test_a_failure_and_a_report_fail(self):
        code, text = self.share("--seed", "a", bad="t2", code=8, text="no")
        self.assertEqual(code, 1)
        self.assertRegex(text, r"t2 .*FAILED")
        self.assertIn("asan: 6 of 6 tests, 1 failed", text)
        code, text = self.share("--seed", "a", bad="t2", text="a.cpp:3:5: runtime error: signed integer overflow")
        self.assertEqual(code, 1)
        self.assertRegex(text, r"t2 .*a.cpp:3:5: runtime error: signed integer overflow")

    def test_reports_are_found_in_the_output_of_tests_that_passed(self):
        path = self.root / "tests.xml"
        case = '<testcase name="x" status="run"><system-out>{}</system-out></testcase>'
        for text, code in (("fine", 0), ("==1==ERROR: AddressSanitizer: heap-use-after-free on address", 1)):
            path.write_text(f"<testsuite>{case.format(text)}</testsuite>")
            command = [sys.executable, "tools/sanitize.py", "reports", str(path)]
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
            self.assertEqual(done.returncode, code)
            self.assertEqual("x: ==1==ERROR" in done.stdout, code == 1)


class TestEverythingTest(unittest.TestCase):
    """./dev test --all over a runner of its own, which leaves the reports that the real one leaves."""

    STUBS = """
        set -euo pipefail
        root=$1
        source "$2"
        say() { printf '%s\\n' "$*" >&2; }
        configured() { [[ $1 != "$no_build" ]]; }
        build_targets() { true; }
        command_lint() { [[ $lint == ok ]]; }
        run_ctest() {
          mkdir -p "$root/build/$1"
          local failures=0 text=""
          if [[ $1 == "$bad" ]]; then
            failures=1 text='<testcase name="shm_test" classname="a" time="1" status="fail">'
          fi
          printf '<testsuite name="L" tests="7" failures="%d" disabled="0" skipped="2" >\\n%s\\n' \\
            $failures "$text" >"$root/build/$1/tests.xml"
          return $failures
        }
        test_everything
    """

    def run_everything(self, bad="", no_build="", lint="ok"):
        with tempfile.TemporaryDirectory() as root:
            done = subprocess.run(
                ["bash", "-c", self.STUBS, "bash", root, str(TOOLS / "test.sh")],
                env={"bad": bad, "no_build": no_build, "lint": lint, "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
            )
            return done.returncode, done.stderr

    def test_all_parts_pass(self):
        code, text = self.run_everything()
        self.assertEqual(code, 0, text)
        self.assertIn("./dev test --all: about", text)
        for part in ("release", "dev", "asan", "tsan"):
            self.assertRegex(text, f"  {part} +passed: 5 tests, 2 skipped")
        self.assertRegex(text, "  lint +passed,")

    def test_a_failed_test_of_any_part_fails_and_is_named_and_the_other_parts_run(self):
        for part in ("release", "dev", "asan", "tsan"):
            code, text = self.run_everything(bad=part)
            self.assertEqual(code, 1)
            self.assertRegex(text, f"  {part} +FAILED: 1 of 7 tests: shm_test")
            self.assertEqual(text.count("passed"), 4)

    def test_what_does_not_build_and_a_bad_lint_fail(self):
        code, text = self.run_everything(no_build="asan")
        self.assertEqual(code, 1)
        self.assertIn("FAILED: it does not build", text)
        code, text = self.run_everything(lint="bad")
        self.assertEqual(code, 1)
        self.assertRegex(text, "  lint +FAILED")


if __name__ == "__main__":
    unittest.main()
