use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Files that import each other, which is only right where they are one thing in several files.
const CIRCLES: &[&[&str]] = &[
    // A container and its handles.
    &[
        "store/blocks/block_store.rs",
        "store/blocks/candidates.rs",
        "store/blocks/diverted.rs",
        "store/blocks/handle.rs",
    ],
    // The number, and who looks at it.
    &["store/memory/budget.rs", "store/memory/pressure.rs"],
];

type Module = Vec<String>;

/// What the files of `src` import, each through `pub use` to where it is defined.
struct Imports {
    files: BTreeMap<Module, String>,
    /// Names that a file exports from others.
    exports: BTreeMap<(String, String), Module>,
    uses: BTreeMap<String, Vec<Module>>,
}

impl Imports {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut imports = Self { files: BTreeMap::new(), exports: BTreeMap::new(), uses: BTreeMap::new() };
        let mut folders = vec![root.clone()];
        let mut texts = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let file = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                    texts.push((file, std::fs::read_to_string(&path).unwrap()));
                }
            }
        }
        // The simulation is a test.
        texts.retain(|(file, _)| !file.ends_with("tests.rs") && !file.contains("/simulation/"));
        for (file, _) in &texts {
            imports.files.insert(module_of(file), file.clone());
        }
        for (file, text) in &texts {
            let is_tests = |rest: &str| rest.lines().nth(1).is_some_and(|line| format!(" {line}").contains(" mod "));
            let mut places = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at);
            let tests = places.find(|at| is_tests(&text[*at..])).unwrap_or(text.len());
            imports.add(file, &text[..tests]);
        }
        imports
    }

    fn add(&mut self, file: &str, text: &str) {
        let code: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        for (at, _) in code.match_indices("use ") {
            let line = code[..at].rsplit('\n').next().unwrap();
            let is_public = line.trim_start().starts_with("pub");
            if !is_public && !line.trim().is_empty() {
                continue;
            }
            let Some((tree, _)) = code[at + 4..].split_once(';') else { continue };
            for path in expand(tree) {
                let Some(path) = self.absolute(file, &path) else { continue };
                match is_public {
                    true => self.exports.insert((file.to_owned(), path.last().unwrap().clone()), path).map_or((), drop),
                    false => self.uses.entry(file.to_owned()).or_default().push(path),
                }
            }
        }
    }

    /// A path of a file from the root of the crate, if it is one of ours.
    fn absolute(&self, file: &str, path: &str) -> Option<Module> {
        let mut parts: Vec<String> = path.split("::").map(str::to_owned).collect();
        let mut base = module_of(file);
        match parts[0].as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                while parts.first().is_some_and(|part| part == "super") {
                    base.pop();
                    parts.remove(0);
                }
                return Some([base, parts].concat());
            }
            first => {
                let child = [base.clone(), vec![first.to_owned()]].concat();
                self.files.get(&child)?;
                return Some([base, parts].concat());
            }
        }
        Some([base, parts[1..].to_vec()].concat())
    }

    /// The file in which something is defined.
    fn resolve(&self, path: &[String], depth: usize) -> Option<&String> {
        let length = (1..=path.len()).rev().find(|length| self.files.contains_key(&path[..*length]))?;
        let file = &self.files[&path[..length]];
        let exported = path.get(length).and_then(|name| self.exports.get(&(file.clone(), name.clone())));
        match exported.filter(|target| target.as_slice() != path && depth < 8) {
            Some(target) => self.resolve(&[target.as_slice(), &path[length + 1..]].concat(), depth + 1),
            None => Some(file),
        }
    }

    /// The files that each file imports.
    fn graph(&self) -> BTreeMap<&String, BTreeSet<&String>> {
        let targets = |(file, paths)| {
            let paths: &Vec<Module> = paths;
            let targets = paths.iter().filter_map(|path| self.resolve(path, 0));
            (file, targets.filter(|target| *target != file).collect())
        };
        self.uses.iter().map(targets).collect()
    }
}

fn module_of(file: &str) -> Module {
    let mut parts: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// The paths of a tree of imports.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((before, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap().trim();
        return if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    };
    let inner = inner.trim_end().trim_end_matches('}');
    let (mut parts, mut depth, mut part) = (Vec::new(), 0, String::new());
    for c in inner.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            c => part.push(c),
        }
    }
    parts.push(part);
    parts.iter().flat_map(|part| expand(part)).map(|path| format!("{before}{path}")).collect()
}

fn reachable<'a>(graph: &BTreeMap<&'a String, BTreeSet<&'a String>>, from: &'a String) -> BTreeSet<&'a String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        for target in graph.get(file).into_iter().flatten() {
            if seen.insert(*target) {
                next.push(target);
            }
        }
    }
    seen
}

#[test]
fn files_import_each_other_only_where_it_is_written_down() {
    let imports = Imports::read();
    let graph = imports.graph();
    let edges: usize = graph.values().map(BTreeSet::len).sum();
    assert!(edges > 500, "only {edges} imports were seen");
    let reach: BTreeMap<_, _> = graph.keys().map(|file| (*file, reachable(&graph, file))).collect();
    let mut circles = BTreeSet::new();
    for (file, targets) in &reach {
        let circle: Vec<&str> = targets
            .iter()
            .filter(|target| reach.get(**target).is_some_and(|back| back.contains(file)))
            .map(|target| target.as_str())
            .collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    let known: BTreeSet<Vec<&str>> = CIRCLES.iter().map(|circle| circle.to_vec()).collect();
    assert_eq!(circles, known);
}

#[test]
fn imports_are_read_as_they_are_written() {
    assert_eq!(expand("super::{a::B, c::{self, D as E}}"), ["super::a::B", "super::c::self", "super::c::D"]);
    let imports = Imports::read();
    let resolved =
        |path: &str| imports.resolve(&path.split("::").map(str::to_owned).collect::<Vec<_>>(), 0).unwrap().as_str();
    assert_eq!(resolved("physical::MapExec"), "physical/map/exec.rs");
    assert_eq!(resolved("dataset::DataContext"), "dataset/context.rs");
}
