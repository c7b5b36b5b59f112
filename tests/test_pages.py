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
LOSS = f"{CONTRIBUTING}test_the_loss_passes_the_tests_of_losses"
FAMILY = f"{CONTRIBUTING}test_the_loss_for_tables_passes_the_contract_of_families"
RULE = f"{CONTRIBUTING}test_the_rule_passes_the_tests_of_rules"
QUESTION = f"{CONTRIBUTING}test_the_question_is_answered_in_every_engine_and_by_nodes"

# Each page's blocks in their order: the language, and who pastes it.
PASTED = {
    "README.md": [
        ("bash", f"{README}test_first_command"),  # the install is that of .ci/run
        ("text", f"{README}test_first_command"),
        ("bash", f"{README}test_second_command"),  # not run: it would run this
        ("python", f"{README}test_python_block"),
        *[("python", FILES)] * 2,  # and on nodes: flower/test_deployed.py
        ("bash", f"{README}test_the_study_of_four_hospitals"),
        ("bibtex", "test_pages.py::test_the_citation_is_that_of_the_file"),
    ],
    "CONTRIBUTING.md": [
        *[("python", EXAMPLE)] * 4,
        ("bash", EXAMPLE),  # but for the other tables' tests, which its second line selects, too
        ("toml", f"{CONTRIBUTING}test_an_entry_point_is_all_it_takes"),
        *[("python", LOSS)] * 3,
        ("python", FAMILY),
        *[("python", f"{CONTRIBUTING}test_the_regularizer_passes_the_tests_of_regularizers")] * 3,
        *[("python", f"{CONTRIBUTING}test_the_set_passes_the_tests_of_sets")] * 3,
        *[("python", RULE)] * 2,
        ("markdown", RULE),
        ("python", QUESTION),
        ("toml", QUESTION),
        *[("python", f"{CONTRIBUTING}test_the_statistic_counts_no_few_rows")] * 3,
    ],
    "docs/coming_from_fedavg.md": [
        ("python", f"{GUIDES}test_a_strategy_in_place_of_flower_s"),
        ("python", FILES),
    ],
    "docs/compression.md": [
        ("python", "algorithms/test_compression.py::test_the_page_s_blocks"),
        ("toml", "algorithms/test_compression.py::test_the_page_s_blocks"),
    ],
    "docs/deployment.md": [
        ("python", APP),
        ("bash", APP),
        ("text", f"{NODES}test_flower_s_own_commands_have_these_options"),
        ("toml", f"{NODES}test_flower_s_own_commands_have_these_options"),
        ("bash", f"{NODES}test_tls_and_keys_pasted_twice"),
        # No systemd in a test: its options are checked.
        ("ini", f"{NODES}test_the_unit_states_options_that_there_are"),
    ],
    "docs/choosing.md": [
        *[("bash", "lab/test_recommend.py::test_the_page_s_commands")] * 2,
    ],
    "docs/commands.md": [
        ("bash", "lab/test_cli_help.py::test_doctor_on_this_machine"),
        ("bash", "lab/test_cite.py::test_the_page_s_commands"),
        ("bash", "lab/test_cli_help.py::test_completion_is_installed_as_the_page_says"),
    ],
    "docs/watching.md": [
        ("bash", "lab/test_watch.py::test_the_page_s_blocks"),
        ("text", "lab/test_watch.py::test_the_page_s_blocks"),
        ("toml", "lab/test_watch.py::test_the_page_s_blocks"),
        *[("python", "lab/test_watch.py::test_the_page_s_blocks")] * 2,
    ],
    "docs/report.md": [
        ("bash", "lab/test_report.py::test_the_page_s_blocks"),
        ("toml", "lab/test_report.py::test_the_page_s_blocks"),
    ],
    "docs/estimators.md": [("python", f"{GUIDES}test_estimators")] * 6,
    "docs/fairness.md": [
        ("python", f"{GUIDES}test_bounds_on_everybody_s_loss"),
        ("text", f"{GUIDES}test_bounds_on_everybody_s_loss"),
        *[("python", f"{GUIDES}test_bounds_on_everybody_s_loss")] * 2,
        ("text", f"{GUIDES}test_bounds_on_everybody_s_loss"),
    ],
    "docs/experiments.md": [
        ("bash", f"{GUIDES}test_shell_block"),
        ("toml", f"{GUIDES}test_an_experiment_of_one_s_own"),
        *[
            (kind, f"{GUIDES}test_arrays_of_one_s_own_become_a_table_a_figure_and_citations")
            for kind in ("python", "toml", "bash")
        ],
        ("python", f"{GUIDES}test_a_problem_of_one_s_own"),
        ("toml", f"{GUIDES}test_a_problem_of_one_s_own"),
        ("toml", "lab/test_study.py::test_the_page_s_block"),
        ("toml", "math/test_partition_rules.py::test_the_page_s_block"),
    ],
    "docs/faults.md": [("python", f"{GUIDES}test_faults")],
    "docs/flower_app.md": [("python", APP), ("python", APP), ("toml", APP)],
    "docs/own_algorithm.md": [
        *[("python", f"{GUIDES}test_an_algorithm_of_one_s_own")] * 3,
        ("toml", f"{GUIDES}test_the_entry_point_of_one_s_own"),
    ],
    "docs/own_composite.md": [
        *[("python", f"{GUIDES}test_a_composite_method_worked_out")] * 2,
        ("toml", f"{GUIDES}test_a_composite_method_worked_out"),
    ],
    "docs/own_oracles.md": [
        *[("python", f"{GUIDES}test_own_oracles")] * 4,
        *[("python", FILES)] * 2,
    ],
    "docs/asynchronous.md": [
        ("python", f"{GUIDES}test_rounds_without_waiting"),
        ("toml", f"{GUIDES}test_rounds_without_waiting"),
    ],
    "docs/participation.md": [
        ("python", f"{GUIDES}test_participation"),
        ("toml", "engines/test_clock.py::test_the_page_s_block"),
    ],
    "docs/policy.md": [("toml", f"{NODES}test_a_node_s_file_sets_its_policy")],
    "docs/privacy.md": [
        ("python", f"{GUIDES}test_privacy"),
        ("toml", f"{GUIDES}test_privacy"),
        ("toml", "privacy/test_prefix.py::test_the_page_s_block_is_an_experiment_s"),
        ("python", "flower/test_noise_of_clients.py::test_the_page_s_blocks"),
        ("toml", "flower/test_noise_of_clients.py::test_the_page_s_blocks"),
        ("bash", "lab/test_privacy_audit.py::test_the_page_s_command"),
        ("text", "lab/test_privacy_audit.py::test_the_page_s_command"),
    ],
    "docs/mathematics.md": [("python", f"{GUIDES}test_a_prox_and_a_projection")],
    "docs/pytorch.md": [("python", f"{GUIDES}test_pytorch")],
    "docs/many_clients.md": [
        *[("python", f"{GUIDES}test_many_clients_in_one_array")] * 2,
        ("toml", f"{GUIDES}test_many_clients_in_one_array"),
    ],
    "docs/ray.md": [("python", f"{GUIDES}test_the_simulation_of_flower")],
    "docs/resume.md": [("python", f"{GUIDES}test_resume")],
    "docs/server_steps.md": [
        ("python", "algorithms/test_server_steps.py::test_the_page_s_blocks"),
        ("text", "algorithms/test_server_steps.py::test_the_page_s_blocks"),
        ("toml", "algorithms/test_server_steps.py::test_the_page_s_blocks"),
        ("python", "algorithms/test_server_steps.py::test_the_page_s_blocks"),
        ("text", "algorithms/test_server_steps.py::test_the_page_s_blocks"),
    ],
    "docs/start.md": [
        ("bash", f"{GUIDES}test_the_install_is_the_readme_s"),  # not run: it would install
        *[("python", f"{GUIDES}test_start")] * 6,
    ],
    "docs/study.md": [
        ("python", f"{GUIDES}test_a_study_from_start_to_end"),
        *[("toml", f"{GUIDES}test_a_study_from_start_to_end")] * 3,
        *[
            (kind, f"{GUIDES}test_a_study_from_start_to_end")
            for kind in ("bash", "text", "bash", "text")
        ],
        ("bash", f"{NODES}test_a_study_on_four_nodes"),
        ("bash", f"{GUIDES}test_a_study_from_start_to_end"),
        ("python", f"{GUIDES}test_a_study_from_start_to_end"),
        ("text", f"{GUIDES}test_a_study_from_start_to_end"),
    ],
    "docs/survival.md": [("python", f"{GUIDES}test_survival")],
    "docs/tables.md": [
        ("python", f"{GUIDES}test_csv_files_become_a_model"),
        *[("toml", f"{GUIDES}test_csv_files_become_a_model")] * 2,
        ("bash", f"{GUIDES}test_csv_files_become_a_model"),
        ("text", f"{GUIDES}test_csv_files_become_a_model"),
        ("toml", "tables/test_schemas.py::test_the_page_s_schemas"),
        ("python", "tables/test_contrasts.py::test_the_page_s_questions"),
        ("toml", "tables/test_schemas.py::test_the_page_s_schemas"),
        ("python", f"{GUIDES}test_four_files_become_a_model"),
        ("text", f"{GUIDES}test_four_files_become_a_model"),
        ("bash", f"{NODES}test_four_files_on_four_nodes"),  # and _from_the_shell
        ("python", f"{GUIDES}test_csv_files_become_a_model"),
    ],
    "docs/training_loops.md": [
        ("diff", f"{GUIDES}test_the_diff_is_the_example_s"),
        ("python", "training/test_torch.py::test_the_page_s_regularizer_on_some_layers"),
        ("python", "training/test_loops.py::test_a_library_s_partial_fit_is_corrected"),
    ],
    "docs/private_examples.md": [
        ("toml", "flower/test_private_examples.py::test_the_page_s_block"),
        ("python", "flower/test_private_examples.py::test_the_page_s_block"),
        ("toml", "flower/test_private_examples.py::test_the_page_s_block"),
    ],
    "docs/secure_aggregation.md": [
        ("python", "flower/test_secure_aggregation.py::test_the_page_s_blocks"),
        ("toml", "flower/test_secure_aggregation.py::test_the_page_s_blocks"),
    ],
    "examples/heart/README.md": [
        ("bash", "test_pages.py::test_the_hospitals_commands_are_those_of_the_page")
    ],
}


def test_a_test_pastes_every_block():
    for page in pages():
        name, found = str(page.relative_to(ROOT)), in_order(page)
        listed = [language for language, _ in PASTED.get(name, [])]
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
