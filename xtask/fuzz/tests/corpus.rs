//! Every target runs over its seeds, over the corpus, over the inputs that once made it fail, and
//! over mutations.

use std::{fs, path::Path};

use cc_core::{policy::PolicyFile, status::Request};
use cc_ebpf::Record;
use cc_fuzz::Target;
use cc_remote::wire::{FromAgent, FromServer};
use cc_sim::{
    scenario::{self, Trace},
    seed,
};
use prost::Message;

fn target(name: &str) -> Target {
    Target::find(name).expect("a target of this name")
}

/// Changes a few bytes of an input, shortens it, or repeats a part of it.
fn mutate(bytes: &mut Vec<u8>, random: &mut impl FnMut() -> u64) {
    for _ in 0..1 + random() % 4 {
        let at = (random() % (bytes.len() as u64 + 1)) as usize;
        match random() % 4 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random() as u8),
            2 => bytes.extend_from_within(at..bytes.len().min(at + 64)),
            _ if at < bytes.len() => bytes[at] ^= 1 << (random() % 8),
            _ => {}
        }
    }
}

fn run(name: &str) {
    let target = target(name);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        assert!(seed.len() <= target.longest, "{} bytes", seed.len());
        target.check(seed);
    }
    for kind in ["corpus", "regressions"] {
        let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(name);
        for file in fs::read_dir(inputs).into_iter().flatten() {
            let path = file.expect("an entry of a listed directory").path();
            println!("{}", path.display());
            target.check(&fs::read(path).expect("a readable file"));
        }
    }
    target.check(&[]);
    let mut outputs = (1..).map(|n| seed::output(1, n));
    let mut random = || outputs.next().expect("as many as are asked for");
    for index in 0..200 {
        let mut bytes = seeds[index % seeds.len()].clone();
        mutate(&mut bytes, &mut random);
        target.check(&bytes);
    }
}

#[test]
fn records() {
    for seed in (target("record").seeds)() {
        Record::decode(&seed).expect("a record");
    }
    run("record");
}

#[test]
fn policies() {
    for seed in (target("policy").seeds)() {
        PolicyFile::parse(&seed).expect("a policy");
    }
    run("policy");
}

#[test]
fn scenarios() {
    for seed in (target("scenario").seeds)() {
        let text = str::from_utf8(&seed).expect("text");
        scenario::parse(text, Path::new("seed.toml")).expect("scenarios");
    }
    run("scenario");
}

#[test]
fn traces() {
    for seed in (target("trace").seeds)() {
        let text = str::from_utf8(&seed).expect("text");
        Trace::parse(text, Path::new("seed.trace")).expect("a trace");
    }
    run("trace");
}

#[test]
fn requests() {
    for seed in (target("request").seeds)() {
        serde_json::from_slice::<Request>(&seed).expect("a request");
    }
    run("request");
}

#[test]
fn recovery() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    // The first seed has no row group, so no footer, and recovery removes it.
    for (seed, rows) in (target("recovery").seeds)().iter().zip([0, 2, 4]) {
        let (length, rest) = seed.split_first_chunk().expect("two bytes");
        let (footer, file) = rest.split_at(usize::from(u16::from_le_bytes(*length)));
        let path = directory
            .path()
            .join(format!("1795000000-0000002a-{rows:06}.parquet"));
        fs::write(path.with_added_extension("open"), file).expect("writable");
        if rows > 0 {
            let place = path.with_added_extension("open.footer");
            fs::write(place, footer).expect("writable");
        }
    }
    let recovered = cc_recording::recover(directory.path()).expect("untouched recordings");
    let rows: Vec<_> = recovered.iter().map(|file| file.rows).collect();
    assert_eq!(rows, [0, 2, 4]);
    run("recovery");
}

#[test]
fn batches() {
    run("batches");
}

#[test]
fn reports() {
    run("report");
}

#[test]
fn remote() {
    for seed in (target("remote").seeds)() {
        let is_read = FromAgent::decode(&*seed).is_ok_and(|message| message.content.is_some())
            || FromServer::decode(&*seed).is_ok_and(|message| message.content.is_some());
        assert!(is_read, "{seed:?}");
    }
    run("remote");
}
