use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The room that a file of src stands in: its folder, or the file itself.
fn room(path: &Path) -> String {
    let relative = path.strip_prefix(root().join("src")).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// What each room may import. `session` wires everything, and nobody imports it; `lib`, `prelude`, `main` and `cli` use
/// what is public.
const LAYERS: &[(&str, &[&str])] = &[
    ("remote", &["dataset", "error", "runtime", "wire"]),
    ("cluster", &["block", "config", "dataset", "error", "physical", "runtime", "sql", "store", "wire"]),
    (
        "dataset",
        &[
            "aggregates",
            "block",
            "call",
            "cloud",
            "config",
            "error",
            "functions",
            "logical",
            "observability",
            "optimizer",
            "physical",
            "planner",
            "runtime",
            "seed",
            "sinks",
            "sources",
            "store",
            "tensors",
            "token",
        ],
    ),
    (
        "sql",
        &[
            "boxed",
            "call",
            "cloud",
            "config",
            "dataset",
            "error",
            "functions",
            "logical",
            "runtime",
            "seed",
            "sources",
            "tensors",
        ],
    ),
    ("logical", &["aggregates", "call", "config", "error", "functions", "seed", "tensors", "token"]),
    ("optimizer", &["aggregates", "config", "error", "functions", "logical", "physical", "sources"]),
    (
        "planner",
        &[
            "boxed",
            "config",
            "functions",
            "logical",
            "observability",
            "optimizer",
            "physical",
            "sinks",
            "sources",
            "tensors",
        ],
    ),
    (
        "sources",
        &[
            "block",
            "boxed",
            "call",
            "config",
            "error",
            "functions",
            "physical",
            "runtime",
            "seed",
            "sinks",
            "store",
            "tensors",
            "token",
        ],
    ),
    (
        "physical",
        &["aggregates", "block", "cloud", "config", "error", "functions", "runtime", "sinks", "store", "token"],
    ),
    ("observability", &["block", "cloud", "config", "error", "functions", "physical", "runtime", "sinks", "store"]),
    ("sinks", &["block", "disk", "error", "runtime"]),
    ("cloud", &["config", "error", "runtime"]),
    ("runtime", &["block", "config", "error"]),
    ("store", &["block", "config", "disk", "error"]),
    ("functions", &["call", "config", "error"]),
    ("aggregates", &["functions"]),
    ("tensors", &["call", "error"]),
    ("seed", &["block", "call"]),
    ("token", &["block"]),
    ("block", &[]),
    ("boxed", &[]),
    ("disk", &["runtime"]),
    ("config", &["call", "error"]),
    ("call", &["error"]),
    ("wire", &[]),
    ("error", &[]),
];

#[test]
fn imports_point_downwards() {
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("src")) {
        let room = room(&file);
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == room) else {
            assert!(
                ["allocator", "session", "lib", "prelude", "main", "cli"].contains(&room.as_str()),
                "{room} has no layer"
            );
            continue;
        };
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (at, _) in text.match_indices("crate::") {
            let rest = &text[at + "crate::".len()..];
            let target: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let known = LAYERS.iter().any(|(name, _)| *name == target) || target == "session";
            if known && target != room && !allowed.contains(&target.as_str()) {
                wrong.push(format!("{} imports {target}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_runtime_starts_work() {
    let outside = |f: &&std::path::PathBuf| !["runtime", "cli"].contains(&room(f).as_str()) && !f.ends_with("tests.rs");
    for file in rust_files(&root().join("src")).iter().filter(outside) {
        let text = std::fs::read_to_string(file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for word in ["tokio::spawn", "spawn_blocking", "JoinSet", "SpawnedTask", "thread::spawn"] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

#[test]
fn the_environment_is_read_at_the_front_door_only() {
    for file in rust_files(&root().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let reads = text.contains("env::vars") || text.contains("env::var(");
        assert!(!reads || ["session", "cli"].contains(&room(&file).as_str()), "{}", file.display());
    }
}

/// The lines of a file without its tests at the end, and without files that are tests.
fn lines_of_code(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let is_test = file.ends_with("tests.rs") || file.to_string_lossy().contains("/simulation/");
    let code = text.split("#[cfg(test)]\nmod ").next().filter(|_| !is_test).unwrap_or_default();
    code.lines().map(str::to_owned).collect()
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    for file in rust_files(&root().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//!"), "{} does not say what it is", file.display());
        assert!(text.lines().count() <= 700, "{} is too long", file.display());
        assert!(lines_of_code(&file).len() <= 500, "{} is too long, without its tests", file.display());
    }
}

#[test]
fn functions_stay_short() {
    let is_function = |line: &str| {
        let words = line.trim_start().trim_start_matches("pub").split_whitespace();
        let mut words = words.skip_while(|word| word.starts_with('(') || ["async", "const"].contains(word));
        words.next() == Some("fn")
    };
    let (mut seen, mut long) = (0, Vec::new());
    for file in rust_files(&root().join("src")) {
        let lines = lines_of_code(&file);
        for (start, line) in lines.iter().enumerate().filter(|(_, line)| is_function(line)) {
            let end = format!("{}}}", " ".repeat(line.len() - line.trim_start().len()));
            let length = lines[start..].iter().position(|line| *line == end).map_or(1, |length| length + 1);
            seen += 1;
            // A function of a trait without a body ends where it begins.
            if length > 60 && !line.ends_with(';') {
                long.push(format!("{}:{} has {length} lines", file.display(), start + 1));
            }
        }
    }
    assert!(seen > 2000, "only {seen} functions were seen");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Comments and prose are read in columns of at most 120 characters. Tables, links and code may be wider.
#[test]
fn comments_and_prose_are_not_wide() {
    let is_wide = |line: &&str| line.chars().count() > 120 && !line.contains('|') && !line.contains("](");
    let mut wide = Vec::new();
    for file in rust_files(&root().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut in_code = false;
        for line in text.lines().filter(|line| line.trim_start().starts_with("//")) {
            in_code ^= line.contains("```");
            if !in_code && is_wide(&line) {
                wide.push(format!("{}: {line}", file.display()));
            }
        }
    }
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let prose = text.split("```").step_by(2);
        // Reference pages and the map of features are tables, whose cells say what code says.
        let is_prose = !document.starts_with(root().join("docs/reference")) && !document.ends_with("ray_parity.md");
        for line in prose.flat_map(str::lines).filter(|line| is_prose && is_wide(line)) {
            wide.push(format!("{}: {line}", document.display()));
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

fn documents() -> Vec<PathBuf> {
    let mut documents = vec![root().join("README.md"), root().join("ARCHITECTURE.md"), root().join("CHANGELOG.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().flatten().map(|e| e.path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => documents.push(path),
            }
        }
    }
    documents
}

#[test]
fn the_map_stays_a_map() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(map.lines().count() <= 200, "decisions belong to docs/decisions");
}

/// A source that documents or comments name is named by the end of its path.
#[test]
fn sources_that_are_named_are_there() {
    let sources: Vec<String> = ["src", "tests", "benches", "examples"]
        .iter()
        .flat_map(|folder| rust_files(&root().join(folder)))
        .map(|path| format!("/{}", path.strip_prefix(root()).unwrap().display()))
        .collect();
    let (mut seen, mut gone) = (0, Vec::new());
    for file in rust_files(&root().join("src")).into_iter().chain(documents()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let is_prose = |line: &&str| file.extension().is_some_and(|e| e == "md") || line.trim_start().starts_with("//");
        for name in text.lines().filter(is_prose).flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let path = name.split("::").next().unwrap();
            if path.ends_with(".rs") && !path.contains(['{', ' ', '<', '*']) {
                seen += 1;
                if !sources.iter().any(|source| source.ends_with(&format!("/{path}"))) {
                    gone.push(format!("{} names {path}", file.display()));
                }
            }
        }
    }
    assert!(seen > 200, "only {seen} names were seen");
    assert!(gone.is_empty(), "{}", gone.join("\n"));
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut checked = BTreeSet::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {link}", document.display());
            checked.insert(path);
        }
    }
    assert!(!checked.is_empty());
}
