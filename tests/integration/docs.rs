use std::fmt::Write;
use std::path::Path;

use blockyard::BlockyardOptions;
use blockyard::call::{Parameter, Tables};
use blockyard::optimizer::RuleRegistry;
use datafusion::config::ExtensionOptions;

/// Compares a reference page with what the code says. `UPDATE_DOCS=1` writes the page instead.
fn pin(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} differs from the code; run the tests with UPDATE_DOCS=1", path.display());
}

#[test]
fn the_options_page_lists_every_option() {
    let mut page = String::from(
        "# Options\n\nSet by `SET blockyard.<option> = '<value>'`, by `DataContext::configure`, by `--set` of the tool, or by an \
         environment\nvariable `BLOCKYARD_<OPTION>`. `SHOW` shows them, `RESET` brings the default back.\n\n\
         | option | default | meaning |\n|---|---|---|\n",
    );
    for entry in BlockyardOptions::default().entries() {
        let default = match entry.key.as_str() {
            "blockyard.num_cpus" => "the CPUs of the machine".to_owned(),
            _ => entry.value.filter(|v| !v.is_empty()).map_or("empty".to_owned(), |v| format!("`{v}`")),
        };
        let meaning = entry.description.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(page, "| `{}` | {default} | {meaning} |", entry.key).unwrap();
    }
    pin("config.md", &page);
}

#[test]
fn the_rules_page_lists_every_rule_in_order() {
    let registry = RuleRegistry::default();
    let ours: Vec<String> = registry.list().into_iter().map(|(name, _)| name).collect();
    let mut page = String::from(
        "# Rules\n\nAll rules of a session in the order in which they run; those in bold are this project's own, or replace one of\n\
         DataFusion's. `DataContext::configure_rules` adds and removes them at run time, `DataContext::rules` lists them.\n",
    );
    let mut list = |title: &str, names: Vec<String>| {
        writeln!(page, "\n## {title}\n").unwrap();
        for (i, name) in names.iter().enumerate() {
            let name = if ours.contains(name) { format!("**{name}**") } else { name.clone() };
            writeln!(page, "{}. {name}", i + 1).unwrap();
        }
    };
    list("Logical", registry.logical_rules().unwrap().iter().map(|r| r.name().to_owned()).collect());
    list("Physical", registry.physical_rules().unwrap().iter().map(|r| r.name().to_owned()).collect());
    pin("rules.md", &page);
}

#[test]
fn every_rule_has_plans_that_show_it() {
    let files = crate::slt::slt_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/plans"));
    let heads: Vec<String> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap().lines().next().unwrap_or_default().to_owned())
        .collect();
    for (name, _) in RuleRegistry::default().list() {
        // One rule stands in two places.
        let name = name.trim_end_matches("(Post)");
        let names_it = |head: &String| {
            head.trim_start_matches("# ").split_once(':').is_some_and(|(names, _)| names.split(", ").any(|n| n == name))
        };
        assert!(heads.iter().any(names_it), "no file of sql/plans begins with the name of the rule {name}");
    }
}

#[test]
fn the_functions_page_lists_every_function() {
    let registry = blockyard::functions::FunctionRegistry::default();
    let mut page = String::from(
        "# Functions for `map_batches`\n\nBuilt in; `DataContext::register_batches` and `register_function` add more.\n\n",
    );
    for name in registry.names() {
        let keeps = registry.get(&name).unwrap().preserves_row_count();
        writeln!(page, "- `{name}`{}", if keeps { ": keeps the number of rows" } else { "" }).unwrap();
    }
    pin("functions.md", &page);
}

#[test]
fn the_other_functions_page_lists_every_name() {
    let context = crate::fixtures::context();
    let mut page = String::from(
        "# Functions by other names\n\nSQL has DataFusion's functions, and these names that other engines have for them. A function of the session with\n\
         such a name comes first; columns are called as they are written.\n\n| written | stands for |\n|---|---|\n",
    );
    let state = context.session().state();
    for (written, meaning) in context.other_functions() {
        let name = written.split('(').next().unwrap();
        let is_there = state.scalar_functions().contains_key(name) || state.aggregate_functions().contains_key(name);
        assert!(!is_there, "{name} is there by its own");
        writeln!(page, "| `{written}` | `{}` |", meaning.replace('|', "\\|")).unwrap();
    }
    pin("other_functions.md", &page);
}

#[test]
fn the_table_functions_page_lists_every_function_and_argument() {
    let mut page = String::from(
        "# Table functions\n\nThey stand in FROM. Tables come first: a name, a subquery, or another call. Arguments follow by position or by name, as\n\
         `name => value`. `DataContext::register_table_function` adds more. Those that take no table are [sources](sources.md).\n",
    );
    for function in table_functions().iter().filter(|function| !function.is_source()) {
        function.describe(&mut page, &[]);
    }
    pin("table_functions.md", &page);
}

#[test]
fn the_sources_page_lists_every_source_and_option() {
    let functions = table_functions();
    let (files, others): (Vec<_>, Vec<_>) =
        functions.iter().filter(|function| function.is_source()).partition(|function| function.takes("paths"));
    let shared: Vec<&str> =
        files[0].parameters.iter().map(|p| p.name).filter(|name| files.iter().all(|file| file.takes(name))).collect();
    let mut page = String::from(
        "# Sources\n\nWhere rows come from. In SQL they stand in FROM, and arguments follow by position or by name, as `name => value`. In Rust\n\
         `context.read(paths, options)` takes the options of a format: `read_csv(paths, delimiter => ';')` is\n\
         `context.read(paths, ReadCsvOptions { delimiter: Some(';'), ..Default::default() })`. Files without a call are read by\n\
         their endings: `FROM 'logs/*.json'`. Tables of DataFusion, and a `Datasource` of an application, are sources too.\n",
    );
    for file in &files {
        let camel: String = file.name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        file.describe(&mut page, &shared);
        writeln!(page, "\nIn Rust `{camel}Options`; and what [all files](#of-all-files) take.").unwrap();
    }
    page += "\n## Of all files\n";
    files[0].list(&mut page, |name| shared.contains(&name));
    for other in others {
        other.describe(&mut page, &[]);
    }
    pin("sources.md", &page);
}

/// A table function as its page describes it.
struct TableFunctionHelp {
    name: &'static str,
    about: &'static str,
    tables: Tables,
    parameters: Vec<Parameter>,
}

fn table_functions() -> Vec<TableFunctionHelp> {
    let context = blockyard::DataContext::new().unwrap();
    let functions = context.table_functions();
    let help = |name| {
        let (about, tables, parameters) = functions.describe(name).unwrap();
        TableFunctionHelp { name, about, tables, parameters }
    };
    functions.names().into_iter().map(help).collect()
}

impl TableFunctionHelp {
    fn is_source(&self) -> bool {
        matches!(self.tables, Tables::None)
    }

    fn takes(&self, argument: &str) -> bool {
        self.parameters.iter().any(|parameter| parameter.name == argument)
    }

    /// Writes all of it but the arguments that `elsewhere` describes.
    fn describe(&self, page: &mut String, elsewhere: &[&str]) {
        let tables = match self.tables {
            Tables::None => vec![],
            Tables::One => vec!["table"],
            Tables::Several => vec!["table", "table", ".."],
        };
        let required = self.parameters.iter().filter(|parameter| parameter.is_required).map(|parameter| parameter.name);
        let call: Vec<_> = tables.into_iter().chain(required).collect();
        writeln!(page, "\n## `{}({})`\n\n{}", self.name, call.join(", "), self.about).unwrap();
        self.list(page, |name| name == "paths" || !elsewhere.contains(&name));
    }

    /// Writes the arguments of some names.
    fn list(&self, page: &mut String, is_listed: impl Fn(&str) -> bool) {
        let listed: Vec<_> = self.parameters.iter().filter(|parameter| is_listed(parameter.name)).collect();
        if !listed.is_empty() {
            writeln!(page, "\n| argument | takes | meaning |\n|---|---|---|").unwrap();
        }
        for Parameter { name, what, about, is_required } in listed {
            let needed = if *is_required { ", required" } else { "" };
            assert!(!about.is_empty(), "{} says nothing of {name}", self.name);
            writeln!(page, "| `{name}` | {what}{needed} | {about} |").unwrap();
        }
    }
}

#[test]
fn the_system_tables_page_lists_every_column() {
    let mut page = String::from(
        "# System tables\n\nIn the schema `blockyard`. Each shows how things stand when it is read, while other queries of the session run.\n",
    );
    for table in blockyard::observability::system_tables() {
        writeln!(page, "\n## `blockyard.{}`\n\n{}\n", table.name, table.about).unwrap();
        writeln!(page, "| column | type | meaning |\n|---|---|---|").unwrap();
        for column in table.columns {
            writeln!(page, "| `{}` | {} | {} |", column.name, column.data_type, column.about).unwrap();
        }
    }
    pin("system_tables.md", &page);
}

/// Each table function is called in some `.slt` file.
#[test]
fn every_table_function_has_a_behaviour_test() {
    let files = crate::slt::slt_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/tests"));
    let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    for name in blockyard::DataContext::new().unwrap().table_functions().names() {
        assert!(texts.iter().any(|text| text.contains(&format!("{name}("))), "no file of sql/tests calls {name}");
    }
}

#[test]
fn the_tests_that_the_parity_table_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("docs/ray_parity.md")).unwrap();
    let mut named = 0;
    let mut missing = Vec::new();
    for row in table.lines().filter(|l| l.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        assert!(cells.len() >= 5, "{row}");
        for name in cells[cells.len() - 1].split('`').skip(1).step_by(2) {
            named += 1;
            let exists = match name.split_once("::") {
                Some((file, function)) => {
                    std::fs::read_to_string(root.join(file)).is_ok_and(|text| text.contains(&format!("fn {function}(")))
                }
                None => name.ends_with(".slt") && root.join(name).exists(),
            };
            if !exists {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "named in docs/ray_parity.md but not there: {missing:?}");
    assert!(named >= 40, "only {named} tests are named");
}

#[test]
fn readme_commands_are_those_that_ci_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let blocks: Vec<&str> = readme.split("```").skip(1).step_by(2).take(2).collect();
    let ci = std::fs::read_to_string(root.join(".ci/run")).unwrap();
    let commands: Vec<&str> = blocks.iter().map(|b| b.trim_start_matches("sh").trim()).collect();
    assert_eq!(commands.len(), 2);
    // The tour with the build at hand, whatever its profile, and the tests to the letter.
    let (_, tour) = commands[0].split_once(" -- ").unwrap();
    let ci_runs = |text: &str| ci.lines().any(|l| !l.starts_with('#') && l.contains(text));
    assert!(ci_runs(&format!(" {tour}")), "CI does not run: {tour}");
    assert!(ci_runs(commands[1]) && commands[1] == "cargo test", "CI does not run: {}", commands[1]);
}

/// The SQL in the documents runs, each document from top to bottom in one session.
#[test]
fn sql_in_documents_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for document in ["README.md", "docs/guide/sql.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        let blocks: Vec<&str> = text.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert!(!blocks.is_empty(), "{document} has no SQL");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("all.sql");
        std::fs::write(&file, blocks.join("\n;\n")).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_blockyard"))
            .args(["run", file.to_str().unwrap(), "--format", "csv"])
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{document}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
