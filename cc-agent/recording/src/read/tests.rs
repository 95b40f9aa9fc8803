use std::{fs, sync::Arc};

use arrow_array::{
    ArrayRef, DictionaryArray, Float32Array, Int64Array, RecordBatch, types::Int32Type,
};
use parquet::{
    arrow::ArrowWriter,
    file::{metadata::KeyValue, properties::WriterProperties},
};
use proptest::{prelude::*, strategy::ValueTree};
use tempfile::TempDir;

use super::*;
use crate::{FileWriter, Recovered, files, recover, samples::row};
use cc_core::{interface::Interface, rows::AddressForm};

fn header() -> FileHeader {
    FileHeader {
        interface: Interface::default(),
        policy: "random".into(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".into(),
        kernel: "6.12.0".into(),
        host: [("net.ipv4.tcp_sack".to_owned(), "1".to_owned())].into(),
        started_ns: 1_795_000_000_000_000_000,
        utc_offset_ns: 1_700_000_000_000_000_001,
        addresses: AddressForm::Plain,
    }
}

/// Rows whose probabilities fit the header's five actions.
fn rows(most: usize) -> impl Strategy<Value = Vec<Row>> {
    proptest::collection::vec(row(), 0..most).prop_map(|mut rows| {
        for decision in rows.iter_mut().filter_map(|row| row.decision.as_mut()) {
            if let Some(probabilities) = &mut decision.probabilities {
                probabilities.resize(5, 0.25);
            }
        }
        rows
    })
}

fn some_rows(count: usize) -> Vec<Row> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let tree = proptest::collection::vec(row(), count).new_tree(&mut runner);
    let mut rows = tree.expect("rows").current();
    for decision in rows.iter_mut().filter_map(|row| row.decision.as_mut()) {
        decision.probabilities = None;
    }
    rows
}

fn write(path: &Path, groups: &[&[Row]]) {
    let mut writer = FileWriter::create(path, header()).expect("a new file");
    for rows in groups {
        writer.write(rows).expect("there is space");
    }
    writer.finish().expect("there is space");
}

fn read_all(path: &Path) -> Result<Vec<Row>, String> {
    let (_, rows) = read(path).map_err(|error| error.to_string())?;
    rows.collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Two rows under this header, as Arrow; by way of a file at `path`.
fn two_rows(path: &Path, header: FileHeader) -> RecordBatch {
    let mut writer = FileWriter::create(path, header).expect("a new file");
    writer.write(&some_rows(2)).expect("there is space");
    writer.finish().expect("there is space");
    let mut batches = open(path).and_then(|(_, builder)| {
        let batches = builder.build();
        batches.map_err(|source| RecordingError::broken(path, source.to_string()))
    });
    let batches = batches.as_mut().expect("it was just written");
    batches.next().expect("two rows").expect("sound")
}

/// A file of our columns with these metadata, and whatever batch.
fn write_raw(path: &Path, values: Vec<KeyValue>, batch: &RecordBatch) {
    let properties = WriterProperties::builder()
        .set_key_value_metadata(Some(values))
        .build();
    let file = File::create(path).expect("a scratch file");
    let mut writer =
        ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a plain schema");
    writer.write(batch).expect("there is space");
    writer.close().expect("there is space");
}

/// A scratch directory, and the path of a recording there that has an agent's name.
fn scratch_of_an_agent() -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a scratch directory");
    let path = directory.path().join("1795000000-0000002a-000000.parquet");
    (directory, path)
}

fn scratch() -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a scratch directory");
    let path = directory.path().join("a.parquet");
    (directory, path)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every bit of every row, whatever the groups.
    #[test]
    fn rows_are_read_as_they_were_written(first in rows(6), second in rows(6)) {
        let (_directory, path) = scratch();
        write(&path, &[&first, &second]);
        let (found, rows) = read(&path).expect("complete");
        prop_assert_eq!(found, header());
        let rows: Vec<_> = rows.collect::<Result<_, _>>().expect("sound");
        prop_assert_eq!(rows, [first, second].concat());
    }
}

#[test]
fn a_file_that_was_left_open_is_whole_up_to_its_last_group() {
    let (directory, path) = scratch_of_an_agent();
    let rows = some_rows(30);
    let mut writer = FileWriter::create(&path, header()).expect("a new file");
    writer.write(&rows[..10]).expect("there is space");
    writer.write(&rows[10..20]).expect("there is space");
    assert!(files(directory.path()).is_err(), "readers do not see it");
    assert_eq!(
        recover(directory.path()).expect("readable"),
        [],
        "it is being written"
    );
    drop(writer);
    // What a kill in the middle of the third group leaves.
    let open = path.with_added_extension("open");
    let mut bytes = fs::read(&open).expect("it is there");
    bytes.extend([7; 999]);
    fs::write(&open, bytes).expect("there is space");

    let recovered = Recovered {
        path: Some(path.clone()),
        rows: 20,
    };
    assert_eq!(recover(directory.path()).expect("recoverable"), [recovered]);
    assert_eq!(read_all(&path).expect("complete"), rows[..20]);
    assert_eq!(files(directory.path()).expect("one"), [path]);
    assert_eq!(
        fs::read_dir(directory.path()).expect("it exists").count(),
        1
    );
    assert_eq!(recover(directory.path()).expect("nothing to do"), []);
}

#[test]
fn an_open_file_without_a_group_is_removed() {
    let (directory, path) = scratch_of_an_agent();
    drop(FileWriter::create(&path, header()).expect("a new file"));
    let nothing = Recovered {
        path: None,
        rows: 0,
    };
    assert_eq!(recover(directory.path()).expect("removable"), [nothing]);
    assert_eq!(
        fs::read_dir(directory.path()).expect("it exists").count(),
        0
    );
}

#[test]
fn nothing_is_overwritten() {
    let (directory, path) = scratch_of_an_agent();
    write(&path, &[&some_rows(3)]);
    let error = FileWriter::create(&path, header())
        .err()
        .expect("it exists");
    assert!(error.to_string().contains("000000.parquet"), "{error}");
    // A whole open file and its footer, which a finished recording has already.
    let (other, made) = scratch_of_an_agent();
    let mut writer = FileWriter::create(&made, header()).expect("a new file");
    writer.write(&some_rows(2)).expect("there is space");
    drop(writer);
    for entry in fs::read_dir(other.path()).expect("it exists") {
        let entry = entry.expect("readable");
        let place = directory.path().join(entry.file_name());
        fs::copy(entry.path(), place).expect("there is space");
    }
    assert!(recover(directory.path()).is_err());
    assert_eq!(read_all(&path).expect("untouched").len(), 3);
}

#[test]
fn the_error_says_why_a_directory_has_nothing_to_read() {
    let (directory, path) = scratch();
    let error = || files(directory.path()).expect_err("nothing").to_string();
    assert!(error().contains("no recording there"), "{}", error());
    let writer = FileWriter::create(&path, header()).expect("a new file");
    assert!(
        error().contains("a.parquet.open: its agent is still writing"),
        "{}",
        error()
    );
    let open = path.with_added_extension("open");
    assert!(matches!(files(&open), Err(RecordingError::Open { .. })));
    writer.finish().expect("there is space");
    assert_eq!(files(directory.path()).expect("complete"), [path]);
}

#[test]
fn a_file_cut_short_says_so() {
    let (_directory, path) = scratch();
    write(&path, &[&some_rows(20)]);
    let bytes = fs::read(&path).expect("it is there");
    for length in [0, 3, 11, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).expect("there is space");
        let error = read_all(&path).expect_err("cut short");
        assert!(
            error.contains("a.parquet") && error.contains("cut short"),
            "{error}"
        );
    }
}

#[test]
fn foreign_files_and_other_versions_have_errors_of_their_own() {
    let (_directory, path) = scratch();
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("price", column)]).expect("one column");
    write_raw(&path, vec![], &batch);
    let error = read(&path).err().expect("foreign");
    assert!(matches!(
        error,
        RecordingError::Header { foreign: true, .. }
    ));
    assert!(error.to_string().contains("no recording"), "{error}");

    let mut values = metadata::to_key_values(&header()).expect("serialises");
    write_raw(&path, values.clone(), &batch);
    let error = read_all(&path).expect_err("no column of ours");
    assert!(
        error.contains("column flow is missing; expected UInt64"),
        "{error}"
    );

    values[0].value = Some("9".into());
    write_raw(&path, values, &batch);
    let error = read_all(&path).expect_err("another version");
    assert!(
        error.contains("version 9, but this build reads versions 1 to 3"),
        "{error}"
    );
}

#[test]
fn an_invalid_value_is_reported_with_its_row_and_column() {
    let (_directory, path) = scratch();
    type Change = fn(&mut Row);
    let changes: [(&str, Change); 5] = [
        ("row 4, column reward: NaN", |row| row.reward = f32::NAN),
        ("row 4, column delay_ms: inf", |row| {
            row.terms.delay = f64::INFINITY;
        }),
        ("row 4, column action: 5, but there are 5 actions", |row| {
            if let Some(decision) = &mut row.decision {
                decision.action = Some(5);
            }
        }),
        ("row 4, column probability: 1.5", |row| {
            if let Some(decision) = &mut row.decision {
                decision.probability = Some(1.5);
            }
        }),
        ("row 4, column probabilities: 2 of 5 actions", |row| {
            if let Some(decision) = &mut row.decision {
                decision.probabilities = Some(vec![0.5, 0.5]);
            }
        }),
    ];
    for (expected, change) in changes {
        let mut rows = some_rows(6);
        let decided = rows.iter().find_map(|row| row.decision.clone());
        rows[4].decision = decided;
        change(&mut rows[4]);
        let _ = fs::remove_file(&path);
        write(&path, &[&rows]);
        let error = read_all(&path).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_page_that_decompresses_to_too_much_is_refused_before_it_does() {
    let (_directory, path) = scratch();
    let batch = two_rows(&path, header());
    let long = "\0".repeat(70 << 20);
    let texts = [long.as_str(), "b"].into_iter();
    let texts: ArrayRef = Arc::new(texts.collect::<DictionaryArray<Int32Type>>());
    let columns = batch.schema();
    let columns = columns.fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| match field.name().as_str() {
        "policy" => (field.name().clone(), texts.clone(), field.is_nullable()),
        _ => (field.name().clone(), column.clone(), field.is_nullable()),
    });
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("equal lengths");
    let properties = WriterProperties::builder()
        .set_compression(parquet::basic::Compression::ZSTD(Default::default()))
        .set_dictionary_enabled(false)
        .set_key_value_metadata(metadata::to_key_values(&header()).ok())
        .build();
    let file = File::create(&path).expect("a scratch file");
    let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties));
    let mut writer = writer.expect("a plain schema");
    writer.write(&batch).expect("there is space");
    writer.close().expect("there is space");
    assert!(fs::metadata(&path).expect("it is there").len() < 1 << 20);
    let error = read_all(&path).expect_err("a bomb");
    assert!(
        error.contains("column policy: a page of 734003") && error.contains("at most 67108864"),
        "{error}"
    );
}

#[test]
fn mixed_action_sets_are_refused() {
    let (_directory, path) = scratch();
    let mut other = header();
    other.interface.actions = "0,*2".parse().expect("an action space");
    let batch = two_rows(&path, other);
    write_raw(
        &path,
        metadata::to_key_values(&header()).expect("serialises"),
        &batch,
    );
    let error = read_all(&path).expect_err("mixed");
    assert!(
        error.contains("row 0, column actions: `0,*2`, but the file's"),
        "{error}"
    );
}

#[test]
fn a_column_of_another_type_is_named() {
    let (_directory, path) = scratch();
    let batch = two_rows(&path, header());
    let fields = batch
        .schema()
        .fields()
        .iter()
        .map(|f| f.name().clone())
        .collect::<Vec<_>>();
    let narrow: ArrayRef = Arc::new(Float32Array::from(vec![1.0, 2.0]));
    let columns = fields.iter().zip(batch.columns()).map(|(name, column)| {
        let column = if name == "loss_mb" {
            narrow.clone()
        } else {
            column.clone()
        };
        (name.clone(), column)
    });
    let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
    write_raw(
        &path,
        metadata::to_key_values(&header()).expect("serialises"),
        &batch,
    );
    let error = read_all(&path).expect_err("another type");
    assert!(
        error.contains("column ") && error.contains("expected"),
        "{error}"
    );
}

#[test]
fn an_empty_directory_says_what_is_expected() {
    let (directory, _) = scratch();
    let error = files(directory.path()).expect_err("empty").to_string();
    assert!(error.contains("no recording there"), "{error}");
    let error = files(Path::new("/no/such/place"))
        .expect_err("missing")
        .to_string();
    assert!(error.contains("/no/such/place"), "{error}");
}
