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

/// What each room may import. `context` wires everything; `lib`, `prelude`, `main` and `cli` use what is public.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "dataset",
        &[
            "aggregates",
            "block",
            "config",
            "context",
            "error",
            "functions",
            "logical",
            "observability",
            "physical",
            "runtime",
            "seed",
            "sinks",
            "sources",
            "sql",
            "store",
        ],
    ),
    ("sql", &["config", "context", "dataset", "error", "functions", "logical", "runtime", "seed", "sources"]),
    ("logical", &["aggregates", "config", "error", "functions", "seed"]),
    ("optimizer", &["config", "error", "functions", "logical", "physical", "sources"]),
    ("planner", &["config", "functions", "logical", "physical", "sinks", "sources"]),
    ("sources", &["block", "config", "error", "physical", "sinks", "store"]),
    ("physical", &["block", "config", "error", "functions", "runtime", "sinks", "store"]),
    ("observability", &["block", "config", "physical", "runtime", "store"]),
    ("sinks", &["block", "disk", "error", "runtime"]),
    ("runtime", &["block", "config", "error"]),
    ("store", &["block", "config", "disk", "error"]),
    ("functions", &["config", "error"]),
    ("aggregates", &[]),
    ("seed", &["block"]),
    ("block", &[]),
    ("disk", &[]),
    ("config", &["error"]),
    ("error", &[]),
];

#[test]
fn imports_point_downwards() {
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("src")) {
        let room = room(&file);
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == room) else {
            assert!(
                ["allocator", "context", "lib", "prelude", "main", "cli"].contains(&room.as_str()),
                "{room} has no layer"
            );
            continue;
        };
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (at, _) in text.match_indices("crate::") {
            let rest = &text[at + "crate::".len()..];
            let target: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let known = LAYERS.iter().any(|(name, _)| *name == target) || target == "context";
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
        assert!(!reads || ["context", "cli"].contains(&room(&file).as_str()), "{}", file.display());
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    for file in rust_files(&root().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//!"), "{} does not say what it is", file.display());
        assert!(text.lines().count() <= 700, "{} is too long", file.display());
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
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
    let mut checked = BTreeSet::new();
    for document in documents {
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
