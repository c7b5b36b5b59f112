"""No block of README, CONTRIBUTING, docs and examples is untried: a test pastes each one."""

from __future__ import annotations

import ast

from pages import ROOT, blocks, in_order, pages

from flower_fedcon import cite

README = "test_readme.py::"
GUIDES = "test_guides.py::"
NODES = "test_deploying.py::"
CONTRIBUTING = "test_contributing.py::"
APP = f"{NODES}test_app_and_deployment"
FILES = "flower/test_two_files.py::test_a_page_s_app_runs_in_flower_s_simulation"
EXAMPLE = f"{CONTRIBUTING}test_the_example_passes_the_contract"
ADDED = f"{CONTRIBUTING}test_what_is_added_passes_the_tests_of_its_kind"
QUESTION = f"{CONTRIBUTING}test_the_question_is_answered_in_every_engine_and_by_nodes"

# Each page's blocks in their order: their languages, and who pastes them.
PASTED = {
    "README.md": [
        ("bash text", f"{README}test_first_command"),  # the install is that of .ci/run
        ("bash", f"{README}test_second_command"),  # not run: it would run this
        ("python", f"{README}test_python_block"),
        ("python python", FILES),  # and on nodes: flower/test_deployed.py
        ("bash", f"{README}test_the_study_of_four_hospitals"),
        ("bibtex", "test_pages.py::test_the_citation_is_that_of_the_file"),
    ],
    "CONTRIBUTING.md": [
        ("python python python python bash", EXAMPLE),  # the bash without other tables' tests
        ("toml", f"{CONTRIBUTING}test_an_entry_point_is_all_it_takes"),
        ("python " * 12 + "markdown", ADDED),
        ("python", f"{CONTRIBUTING}test_the_command_is_found"),
        ("python toml", QUESTION),
        ("python python python", ADDED),
    ],
    "docs/coming_from_fedavg.md": [
        ("python", f"{GUIDES}test_a_strategy_in_place_of_flower_s"),
        ("python", FILES),
    ],
    "docs/compression.md": [
        ("python toml", "algorithms/test_compression.py::test_the_page_s_blocks"),
    ],
    "docs/deployment.md": [
        ("python bash", APP),
        ("text toml", f"{NODES}test_flower_s_own_commands_have_these_options"),
        ("bash", f"{NODES}test_tls_and_keys_pasted_twice"),
        # No systemd in a test: its options are checked.
        ("ini", f"{NODES}test_the_unit_states_options_that_there_are"),
        ("toml", "flower/test_first_mistakes.py::test_the_page_s_keys_have_their_defaults"),
    ],
    "docs/choosing.md": [("bash bash", "lab/test_recommend.py::test_the_page_s_commands")],
    "docs/commands.md": [
        ("bash", "lab/test_cli_help.py::test_doctor_on_this_machine"),
        ("bash", "lab/test_cite.py::test_the_page_s_commands"),
        ("bash", "lab/test_cli_help.py::test_completion_is_installed_as_the_page_says"),
    ],
    "docs/watching.md": [
        ("bash text toml python python", "lab/test_watch.py::test_the_page_s_blocks"),
    ],
    "docs/report.md": [("bash toml", "lab/test_report.py::test_the_page_s_blocks")],
    "docs/estimators.md": [
        ("python " * 6, f"{GUIDES}test_estimators"),
    ],
    "docs/fairness.md": [
        (
            "python text python python text python text python text",
            f"{GUIDES}test_bounds_on_everybody_s_loss",
        ),
    ],
    "docs/experiments.md": [
        ("bash", f"{GUIDES}test_shell_block"),
        ("toml", f"{GUIDES}test_an_experiment_of_one_s_own"),
        (
            "python toml bash",
            f"{GUIDES}test_arrays_of_one_s_own_become_a_table_a_figure_and_citations",
        ),
        ("python toml", f"{GUIDES}test_a_problem_of_one_s_own"),
        ("toml", "lab/test_study.py::test_the_page_s_block"),
        ("toml", "math/test_partition_rules.py::test_the_page_s_block"),
    ],
    "docs/faults.md": [("python", f"{GUIDES}test_faults")],
    "docs/which_method.md": [("python", "algorithms/test_fedmls.py::test_the_page_s_block")],
    "docs/flower_app.md": [("python python toml", APP)],
    "docs/own_algorithm.md": [
        ("python python python", f"{GUIDES}test_an_algorithm_of_one_s_own"),
        ("toml", f"{GUIDES}test_the_entry_point_of_one_s_own"),
    ],
    "docs/own_composite.md": [
        ("python python toml", f"{GUIDES}test_a_composite_method_worked_out"),
        ("python", f"{GUIDES}test_a_distance_of_one_s_own"),
    ],
    "docs/own_memory.md": [
        ("python python python python", f"{GUIDES}test_methods_with_memory"),
    ],
    "docs/own_oracles.md": [
        ("python python python python", f"{GUIDES}test_own_oracles"),
        ("python python", FILES),
    ],
    "docs/asynchronous.md": [
        ("python", f"{GUIDES}test_rounds_without_waiting"),
        ("toml", f"{GUIDES}test_rounds_without_waiting"),
    ],
    "docs/participation.md": [
        ("python python", f"{GUIDES}test_participation"),
        ("toml", "engines/test_clock.py::test_the_page_s_block"),
    ],
    "docs/policy.md": [("toml", f"{NODES}test_a_node_s_file_sets_its_policy")],
    "docs/privacy.md": [
        ("python toml", f"{GUIDES}test_privacy"),
        ("toml", "privacy/test_prefix.py::test_the_page_s_block_is_an_experiment_s"),
        ("python toml", "flower/test_noise_of_clients.py::test_the_page_s_blocks"),
        ("bash text", "lab/test_privacy_audit.py::test_the_page_s_command"),
    ],
    "docs/mathematics.md": [("python", f"{GUIDES}test_a_prox_and_a_projection")],
    "docs/pytorch.md": [("python", f"{GUIDES}test_pytorch")],
    "docs/many_clients.md": [("python python toml", f"{GUIDES}test_many_clients_in_one_array")],
    "docs/ray.md": [("python", f"{GUIDES}test_the_simulation_of_flower")],
    "docs/resume.md": [("python", f"{GUIDES}test_resume")],
    "docs/server_steps.md": [
        ("python text toml python text", "algorithms/test_server_steps.py::test_the_page_s_blocks"),
    ],
    "docs/start.md": [
        ("bash", f"{GUIDES}test_the_install_is_the_readme_s"),  # not run: it would install
        ("python " * 6, f"{GUIDES}test_start"),
    ],
    "docs/study.md": [
        ("python toml toml toml bash text bash text", f"{GUIDES}test_a_study_from_start_to_end"),
        ("bash", f"{NODES}test_a_study_on_four_nodes"),
        ("bash python text", f"{GUIDES}test_a_study_from_start_to_end"),
    ],
    "docs/survival.md": [("python", f"{GUIDES}test_survival")] * 3,
    "docs/tables.md": [
        ("python toml toml bash text", f"{GUIDES}test_csv_files_become_a_model"),
        ("toml toml", "tables/test_schemas.py::test_the_page_s_schemas"),
        ("python", "tables/test_contrasts.py::test_the_page_s_questions"),
        ("toml", "tables/test_schemas.py::test_the_page_s_schemas"),
        ("python text", f"{GUIDES}test_four_files_become_a_model"),
        ("bash", f"{NODES}test_four_files_on_four_nodes"),  # and _from_the_shell
        ("python", f"{GUIDES}test_csv_files_become_a_model"),
    ],
    "docs/training_loops.md": [
        ("diff", f"{GUIDES}test_the_diff_is_the_example_s"),
        ("python", "training/test_torch.py::test_the_page_s_regularizer_on_some_layers"),
        ("python", "training/test_loops.py::test_a_library_s_partial_fit_is_corrected"),
        ("python", "training/test_loops.py::test_parameters_in_a_tree"),
    ],
    "docs/private_examples.md": [
        ("toml python toml", "flower/test_private_examples.py::test_the_page_s_block"),
    ],
    "docs/secure_aggregation.md": [
        ("python toml", "flower/test_secure_aggregation.py::test_the_page_s_blocks"),
    ],
    "examples/heart/README.md": [
        ("bash", "test_pages.py::test_the_hospitals_commands_are_those_of_the_page"),
    ],
}


def test_a_test_pastes_every_block():
    for page in pages():
        name, found = str(page.relative_to(ROOT)), in_order(page)
        listed = "".join(f"{languages} " for languages, _ in PASTED.get(name, [])).split()
        assert [language for language, _ in found] == listed, f"who pastes them? {name}"
        fences = page.read_text("utf-8").count("```")
        assert fences == 2 * len(found), "a fence is indented or has words behind its language"
    assert set(PASTED) <= {str(page.relative_to(ROOT)) for page in pages()}


def test_the_citation_is_that_of_the_file():
    """The BibTeX entry says what CITATION.cff does."""
    (entry,) = blocks("bibtex")
    lines = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    stated = dict(line.split(": ", 1) for line in lines if ": " in line)
    for key in ("title", "version", "license"):
        assert f"  {key} = {{{stated[key]}}},\n" in entry, key
    assert f"{{{{{stated['  - name']}}}}}" in entry
    assert entry == cite()


def test_who_pastes_exists():
    for path in {path for listed in PASTED.values() for _, path in listed}:
        file, _, test = path.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_hospitals_commands_are_those_of_the_page():
    assert blocks("bash", "examples/heart/README.md") == blocks("bash", "docs/tables.md")[1:]
