//! The graph of the workspace's crates, compared with the one that docs/architecture.md draws.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use serde_json::Value;

use crate::{
    files::root,
    limits::{IMPURE, PURE},
};

/// The document with the drawn graph, and the info string of its code block.
const DOCUMENT: &str = "docs/architecture.md";
const INFO_STRING: &str = "dependencies";

/// For each crate of the workspace, the names of its direct normal dependencies.
type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_crates_depend_on_each_other_as_drawn() {
    let path = root().join(DOCUMENT);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{DOCUMENT}, which lists each crate's dependencies, cannot be read: {error}")
    });
    let drawn = drawn(&text).unwrap_or_else(|reason| panic!("{DOCUMENT}: {reason}"));
    let found = within_workspace(&direct_dependencies());
    for (name, dependencies) in &found {
        println!("{}", line(name, dependencies));
    }
    let mut differences = Vec::new();
    for name in drawn.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
        match (drawn.get(name), found.get(name)) {
            (Some(drawn), Some(found)) if drawn == found => {}
            (Some(drawn), Some(found)) => differences.push(format!(
                "drawn `{}`, but Cargo.toml has `{}`",
                line(name, drawn),
                line(name, found)
            )),
            (None, Some(found)) => differences.push(format!("missing: `{}`", line(name, found))),
            (_, None) => differences.push(format!("the workspace has no crate {name}")),
        }
    }
    assert!(
        differences.is_empty(),
        "the code block `{INFO_STRING}` of {DOCUMENT} differs from the workspace:\n  {}",
        differences.join("\n  ")
    );
}

#[test]
fn the_pure_crates_do_no_system_calls() {
    let direct = direct_dependencies();
    for name in PURE {
        let dependencies = direct
            .get(name)
            .unwrap_or_else(|| panic!("there is no crate {name}"));
        for impure in IMPURE {
            assert!(
                !dependencies.contains(impure),
                "{name} depends on {impure}, but it is one of the pure crates ({})",
                PURE.join(", ")
            );
        }
        // libc comes with rand and with tract, whatever these crates themselves do.
        let all = closure(name);
        println!(
            "{name}: {} packages in all; of the impure ones: {:?}",
            all.len(),
            IMPURE
                .iter()
                .filter(|impure| all.contains(**impure))
                .collect::<Vec<_>>()
        );
        for impure in IMPURE.into_iter().filter(|impure| *impure != "libc") {
            assert!(
                !all.contains(impure),
                "{name} depends on {impure} through another package: \
                 see `cargo tree -p {name} -i {impure}`"
            );
        }
    }
}

/// Reads the graph from the code block of the document: one line per crate, `NAME: NAME NAME …`.
fn drawn(markdown: &str) -> Result<Graph, String> {
    let block = markdown
        .split_once(&format!("```{INFO_STRING}\n"))
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(block, _)| block)
        .ok_or_else(|| {
            format!(
                "there is no code block with the info string `{INFO_STRING}`; it must have one \
                 line per crate of the workspace, such as `cc-agent: cc-core cc-ebpf`"
            )
        })?;
    block
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let (name, dependencies) = line
                .split_once(':')
                .ok_or_else(|| format!("`{line}` has no colon after the crate's name"))?;
            let dependencies = dependencies.split_whitespace().map(str::to_owned);
            Ok((name.trim().to_owned(), dependencies.collect()))
        })
        .collect()
}

/// Asks cargo for the direct normal dependencies, optional ones included, of each crate of the
/// workspace.
fn direct_dependencies() -> Graph {
    let text = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&text).expect("cargo metadata prints JSON");
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    array(&metadata["packages"])
        .iter()
        .map(|package| {
            // The kind of a build or development dependency has a name.
            let normal = array(&package["dependencies"])
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .map(|dependency| text_of(&dependency["name"]))
                .collect();
            (text_of(&package["name"]), normal)
        })
        .collect()
}

fn text_of(value: &Value) -> String {
    value
        .as_str()
        .expect("a name in cargo's metadata")
        .to_owned()
}

/// Keeps only the dependencies that are crates of the workspace themselves.
fn within_workspace(graph: &Graph) -> Graph {
    let members: BTreeSet<_> = graph.keys().cloned().collect();
    graph
        .iter()
        .map(|(name, dependencies)| {
            (
                name.clone(),
                dependencies.intersection(&members).cloned().collect(),
            )
        })
        .collect()
}

/// Asks cargo for every package that `name` depends on, directly or not, on this platform.
fn closure(name: &str) -> BTreeSet<String> {
    let format = ["--prefix", "none", "--format", "{p}"];
    cargo(
        &[
            &["tree", "--edges", "normal,no-proc-macro", "--package", name],
            &format[..],
        ]
        .concat(),
    )
    .lines()
    .filter_map(|line| line.split_whitespace().next())
    .map(str::to_owned)
    .collect()
}

/// Runs cargo without network and returns what it prints.
fn cargo(arguments: &[&str]) -> String {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .current_dir(root())
        .args(arguments)
        .arg("--offline")
        .output()
        .expect("the cargo that runs this test can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cargo {}: {errors}",
        arguments.join(" ")
    );
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

fn line(name: &str, dependencies: &BTreeSet<String>) -> String {
    let words: Vec<_> = dependencies.iter().map(String::as_str).collect();
    format!("{name}: {}", words.join(" ")).trim_end().to_owned()
}

#[test]
fn a_drawing_is_one_line_per_crate() {
    let text = "# Crates\n```dependencies\na: b c\n\nb:\n```\nmore\n";
    let graph = drawn(text).expect("a well-formed block");
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        graph,
        BTreeMap::from([
            ("a".to_owned(), set(&["b", "c"])),
            ("b".to_owned(), set(&[]))
        ])
    );
    assert!(drawn("no block").is_err());
    assert!(drawn("```dependencies\na b\n```\n").is_err());
}
