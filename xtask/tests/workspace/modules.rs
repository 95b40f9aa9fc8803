//! Circles between the modules of a crate.
//!
//! Two sibling modules form a circle when each refers to the other, directly or through further
//! siblings: `a` uses `b` when any file of `a` or of its submodules names a path into `b`. A module
//! and its own parent may refer to each other. Test code is left out.
//!
//! The scanner knows `use` declarations and paths that begin with `crate`, `super` or `self`, and
//! follows names that a module re-exports to the module that defines them. It reads no macros.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::files::{self, root};

/// The path of a module, or of an item, from its crate's root: `["flows", "table"]`.
type ModulePath = Vec<String>;

/// The modules of one crate by their path; the root's is empty.
type Modules = BTreeMap<ModulePath, Module>;

/// One module that has a file of its own.
#[derive(Debug, Default)]
struct Module {
    /// The paths that the module's code names, from the crate's root.
    named: BTreeSet<ModulePath>,
    /// The names that `use` declarations bring into the module, with the path of each.
    imports: BTreeMap<String, ModulePath>,
}

#[test]
fn no_circle_between_modules() {
    let manifests = files::with_extension(root(), "toml");
    let sources = manifests
        .iter()
        .filter(|file| file.path.ends_with("Cargo.toml"))
        .filter_map(|file| Some(file.path.parent()?.join("src")))
        .filter(|source| root().join(source).is_dir());
    let mut count = 0;
    for source in sources {
        let modules = modules_of(&source);
        for circle in circles(&modules) {
            println!("{}: {circle}", source.display());
            count += 1;
        }
    }
    assert_eq!(count, 0, "circles between modules, listed above");
}

/// Reads the modules below a crate's `src` directory.
fn modules_of(source: &Path) -> Modules {
    let files = files::with_extension(&root().join(source), "rs");
    let mut modules = Modules::new();
    for file in &files {
        let path = file.path.strip_prefix(source).expect("a file below src");
        let Some(path) = module_path(path) else {
            continue;
        };
        modules
            .entry(path.clone())
            .or_default()
            .read(&path, &file.text);
    }
    modules
}

/// The module that a file below `src` holds; `None` for a file of tests.
fn module_path(file: &Path) -> Option<ModulePath> {
    let mut path: ModulePath = file
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if matches!(
        path.last().map(String::as_str),
        Some("main" | "lib" | "mod")
    ) {
        path.pop();
    }
    (!path.iter().any(|part| part == "tests")).then_some(path)
}

impl Module {
    fn read(&mut self, own: &[String], text: &str) {
        let tokens = without_tests(tokens(text));
        let mut rest = &tokens[..];
        while let Some((first, after)) = rest.split_first() {
            if first == "use" {
                let mut leaves = Vec::new();
                rest = read_use(after, &mut Vec::new(), &mut leaves);
                for (path, name) in leaves {
                    let Some(path) = absolute(own, &path) else {
                        continue;
                    };
                    self.named.insert(path.clone());
                    self.imports.insert(name, path);
                }
            } else if matches!(first.as_str(), "crate" | "super" | "self") {
                let (path, after) = read_path(rest);
                self.named.extend(absolute(own, &path));
                rest = after;
            } else {
                rest = after;
            }
        }
    }
}

/// Reads one tree of a `use` declaration, which `prefix` precedes, and adds each of its paths with
/// the name that it is imported by. Returns the tokens after the tree.
fn read_use<'a>(
    mut tokens: &'a [String],
    prefix: &mut ModulePath,
    leaves: &mut Vec<(ModulePath, String)>,
) -> &'a [String] {
    let depth = prefix.len();
    while let Some((token, rest)) = tokens.split_first() {
        tokens = rest;
        match token.as_str() {
            "::" => continue,
            "{" => {
                while tokens.first().is_some_and(|token| token != "}") {
                    tokens = read_use(tokens, prefix, leaves);
                    if tokens.first().is_some_and(|token| token == ",") {
                        tokens = &tokens[1..];
                    }
                }
                prefix.truncate(depth);
                return tokens.get(1..).unwrap_or_default();
            }
            "*" => leaves.push((prefix.clone(), String::new())),
            _ => {
                prefix.push(token.clone());
                if tokens.first().is_some_and(|token| token == "::") {
                    continue;
                }
                let mut name = token.clone();
                let mut path = prefix.clone();
                if name == "self" && depth > 0 {
                    path.pop();
                    name = path.last().cloned().unwrap_or_default();
                }
                if tokens.first().is_some_and(|token| token == "as") {
                    name = tokens.get(1).cloned().unwrap_or_default();
                    tokens = tokens.get(2..).unwrap_or_default();
                }
                leaves.push((path, name));
            }
        }
        break;
    }
    prefix.truncate(depth);
    tokens
}

/// Reads a path `a::b::c`, and returns it with the tokens after it.
fn read_path(mut tokens: &[String]) -> (ModulePath, &[String]) {
    let mut path = ModulePath::new();
    while let Some((token, rest)) = tokens.split_first() {
        if !is_name(token) {
            break;
        }
        path.push(token.clone());
        tokens = rest;
        match tokens.split_first() {
            Some((separator, rest)) if separator == "::" => tokens = rest,
            _ => break,
        }
    }
    (path, tokens)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Turns a path as written in the module `own` into one from the crate's root; `None` for a path
/// into another crate. (A path that begins with a submodule's name leads downwards, and no such
/// path can make a circle between siblings.)
fn absolute(own: &[String], path: &[String]) -> Option<ModulePath> {
    let mut base = own.to_vec();
    let mut rest = path;
    match rest.split_first()? {
        (first, after) if first == "crate" => {
            base.clear();
            rest = after;
        }
        (first, after) if first == "self" => rest = after,
        (first, _) if first == "super" => {}
        _ => return None,
    }
    while let Some((first, after)) = rest.split_first()
        && first == "super"
    {
        base.pop()?;
        rest = after;
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// The module that defines what `path` names: the longest beginning of the path that is a module,
/// after following what that module imports under the next name.
fn definition(modules: &Modules, path: &[String]) -> ModulePath {
    let mut path = path.to_vec();
    // Imports that lead in circles end here.
    for _ in 0..8 {
        let length = (0..=path.len())
            .rev()
            .find(|&length| modules.contains_key(&path[..length]))
            .unwrap_or(0);
        let imported = path
            .get(length)
            .and_then(|name| modules.get(&path[..length])?.imports.get(name));
        match imported {
            Some(target) if !path.starts_with(target) => {
                path = [target, &path[length + 1..]].concat();
            }
            _ => {
                path.truncate(length);
                return path;
            }
        }
    }
    path
}

/// Finds the circles between siblings, one description for each group of modules that all reach
/// each other.
fn circles(modules: &Modules) -> Vec<String> {
    // For each parent, the arrows between its children, with the file that draws each.
    let mut arrows: BTreeMap<ModulePath, BTreeMap<(String, String), String>> = BTreeMap::new();
    for (from, module) in modules {
        for named in &module.named {
            let to = definition(modules, named);
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                arrows
                    .entry(from[..common].to_vec())
                    .or_default()
                    .entry((a.clone(), b.clone()))
                    .or_insert_with(|| format!("{} names {}", from.join("::"), named.join("::")));
            }
        }
    }
    let mut found = Vec::new();
    for arrows in arrows.values() {
        let mut seen = BTreeSet::new();
        for (start, _) in arrows.keys() {
            if !seen.insert(start) {
                continue;
            }
            let group: BTreeSet<_> = reachable(arrows, start)
                .into_iter()
                .filter(|other| reachable(arrows, other).contains(start))
                .collect();
            seen.extend(group.iter().copied());
            let inside = arrows
                .iter()
                .filter(|((a, b), _)| group.contains(a) && group.contains(b))
                .map(|(_, reason)| format!("\n    {reason}"));
            let inside: String = inside.collect();
            if !inside.is_empty() {
                let names: Vec<_> = group.iter().map(|name| name.as_str()).collect();
                found.push(format!("{}{inside}", names.join(", ")));
            }
        }
    }
    found
}

/// Every module that arrows lead to from `start`.
fn reachable<'a>(
    arrows: &'a BTreeMap<(String, String), String>,
    start: &String,
) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(from) = waiting.pop() {
        for (a, b) in arrows.keys() {
            if a == from && found.insert(b) {
                waiting.push(b);
            }
        }
    }
    found
}

/// Splits source text into names, `::`, and single other characters; comments, strings, characters
/// and numbers' digits are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = string_length(rest) {
            length
        } else if is_name(rest) {
            let length = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else if first.is_whitespace() || first.is_ascii_digit() {
            first.len_utf8()
        } else {
            tokens.push(first.to_string());
            first.len_utf8()
        };
        rest = &rest[skip..];
    }
    tokens
}

/// The length of the string or character literal that `text` begins with.
fn string_length(text: &str) -> Option<usize> {
    let body = text.trim_start_matches(['b', 'c']);
    let prefix = text.len() - body.len();
    if prefix > 1 {
        return None;
    }
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inner = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
        return Some(prefix + 1 + hashes + 1 + length);
    }
    if let Some(character) = body.strip_prefix('\'') {
        // A lifetime or a loop label is followed by no quote.
        let mut inner = character.chars();
        let end = match inner.next()? {
            '\\' => {
                inner
                    .as_str()
                    .char_indices()
                    .skip(1)
                    .find(|(_, c)| *c == '\'')?
                    .0
                    + 2
            }
            c if inner.as_str().starts_with('\'') => c.len_utf8() + 1,
            _ => return None,
        };
        return Some(prefix + 1 + end);
    }
    let mut escaped = false;
    for (index, c) in body.strip_prefix('"')?.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(prefix + index + 2),
            _ => {}
        }
    }
    None
}

/// Leaves out the items behind `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        kept.push(token);
        if !kept.ends_with(&ATTRIBUTE.map(str::to_owned)) {
            continue;
        }
        kept.truncate(kept.len() - ATTRIBUTE.len());
        let mut depth = 0;
        for token in tokens.by_ref() {
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 && matches!(token.as_str(), ";" | "}") {
                break;
            }
        }
    }
    kept
}

#[cfg(test)]
fn crate_of(files: &[(&str, &str)]) -> Modules {
    let mut modules = Modules::new();
    for (file, text) in files {
        let path = module_path(Path::new(file)).expect("no file of tests");
        modules.entry(path.clone()).or_default().read(&path, text);
    }
    modules
}

#[test]
fn a_circle_is_found_through_a_third_module() {
    let modules = crate_of(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::{b::B, std};"),
        ("b.rs", "use super::c;"),
        ("c.rs", "mod inner;"),
        ("c/inner.rs", "fn f() -> crate::a::A { 'x: loop {} }"),
    ]);
    let found = circles(&modules);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("a, b, c\n"), "{}", found[0]);
    assert!(found[0].contains("c::inner names a::A"), "{}", found[0]);
}

#[test]
fn a_reexport_leads_to_the_module_that_defines_it() {
    let modules = crate_of(&[
        ("lib.rs", "mod a; mod b; pub use self::b::B as Renamed;"),
        ("a.rs", "use crate::Renamed;"),
        ("b.rs", "use crate::a::{self, A as Other};"),
    ]);
    assert_eq!(circles(&modules).len(), 1);
}

#[test]
fn parents_tests_and_text_make_no_circle() {
    let modules = crate_of(&[
        ("lib.rs", "mod a; mod b; use self::a::A;"),
        ("a.rs", "mod child; use child::C; fn f() { super::g() }"),
        ("a/child.rs", "use super::A;"),
        ("b.rs", "use crate::a::A; // crate::b"),
        (
            "a/other.rs",
            "/* crate::b */ const S: &str = \"crate::b \\\" crate::b\"; const C: char = '\"'; \
             #[cfg(test)] mod tests { use crate::b; } #[cfg(test)] use crate::b::X;",
        ),
    ]);
    assert_eq!(circles(&modules), Vec::<String>::new());
}
