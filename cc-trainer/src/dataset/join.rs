//! What applications measured of flows, joined with recordings: completion times, stalls, scores.
//!
//! A file has one row per flow. Its column `cookie` (the socket's, `SO_COOKIE`) or `flow` (the
//! recordings' own name of the flow) says which flow; each other column is an *outcome term*. Every
//! decision of a flow has the flow's figures: an application knows them when the flow is over, and
//! not which decision they are due to.

use std::{
    collections::{BTreeMap, HashMap, hash_map},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchReader,
    cast::AsArray,
    types::{
        Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
        UInt32Type, UInt64Type,
    },
};
use arrow_schema::{DataType, Schema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// What identifies the flow of a row, as the name of the column says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKey {
    /// `flow`: the flow's name in its recordings.
    Flow,
    /// `cookie`: the cookie of the flow's socket.
    Cookie,
}

impl JoinKey {
    /// Returns the name of the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Cookie => "cookie",
        }
    }
}

/// What applications measured of flows: the columns of a Parquet file as outcome terms, and their
/// weights in the reward.
#[derive(Clone, Debug)]
pub struct Joined {
    path: PathBuf,
    key: JoinKey,
    names: Vec<String>,
    weights: Vec<f64>,
    rows: HashMap<u64, Arc<[f64]>>,
    complete: bool,
}

/// Why a file cannot be joined with recordings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The file is not Parquet, or cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// The error of the operating system or the Parquet library.
        reason: String,
    },
    /// The file has not the columns that are needed.
    #[error(
        "{}: its columns are {}; expected one of `flow` and `cookie`, which say whose row it is, \
         and beside it columns of numbers, such as completion_s",
        path.display(),
        columns.join(", ")
    )]
    Columns {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// The names of all its columns.
        columns: Vec<String>,
    },
    /// A column cannot be an outcome term.
    #[error("{}: column `{column}` {reason}: leave it out, or name it otherwise", path.display())]
    Column {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// Name of the column in question.
        column: String,
        /// Why it cannot be one, as the end of a sentence.
        reason: String,
    },
    /// A value is missing or no number.
    #[error(
        "{}: row {row}, column `{column}`: {found}; expected {expected}, or no such row",
        path.display()
    )]
    Value {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// Number of the row, from 0.
        row: usize,
        /// Name of the value's column.
        column: String,
        /// The value, or what is there instead.
        found: String,
        /// What the value should be.
        expected: &'static str,
    },
    /// Two rows are about one flow.
    #[error(
        "{}: rows {first} and {row} both have {} {key}: a flow has one row, so add up or average \
         what was measured on it several times",
        path.display(),
        column.name()
    )]
    Twice {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// Number of the first such row, from 0.
        first: usize,
        /// Number of the second such row.
        row: usize,
        /// The column that identifies flows.
        column: JoinKey,
        /// The value of that column in both.
        key: u64,
    },
    /// A weight is for a term that the file does not have.
    #[error("--weigh {name}: {} has the columns {}", path.display(), columns.join(", "))]
    NoSuchTerm {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// The name that was given.
        name: String,
        /// The names of the terms that it has.
        columns: Vec<String>,
    },
    /// A weight is not a finite number.
    #[error("--weigh {name}={weight}: expected a finite number")]
    Weight {
        /// The name of the term that it is for.
        name: String,
        /// The weight that was given.
        weight: f64,
    },
    /// Flows of different hosts have the same cookie.
    #[error(
        "flows in {} and in {} have the cookie {cookie}: cookies are unique on one host only, so \
         join each host's recordings with a file of their own, or name flows by `flow`",
        first.display(),
        second.display()
    )]
    Ambiguous {
        /// The cookie that both of them have.
        cookie: u64,
        /// Directory of one of the flows.
        first: PathBuf,
        /// Directory of another one of them.
        second: PathBuf,
    },
    /// No recorded flow has a row.
    #[error(
        "none of {flows} recorded flows is among the {rows} rows of {}{}",
        path.display(),
        hint(*key, *without_cookie)
    )]
    NoneMatched {
        /// Path of the file that was to be joined.
        path: PathBuf,
        /// The column that identifies its flows.
        key: JoinKey,
        /// Number of rows of the file.
        rows: usize,
        /// Number of flows in the recordings.
        flows: usize,
        /// Number of these that have no cookie.
        without_cookie: usize,
    },
}

fn hint(key: JoinKey, without_cookie: usize) -> String {
    match key {
        JoinKey::Flow => ": `flow` is the number in the recordings' column of that name".to_owned(),
        JoinKey::Cookie => format!(
            ": `cookie` is what getsockopt(SO_COOKIE) returns, and in hexadecimal what `ss -e` \
             shows; {without_cookie} of the flows were recorded without one"
        ),
    }
}

/// Counts of what a join matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinCounts {
    /// Number of recorded flows that have a row.
    pub flows: u64,
    /// Number of recorded flows that have none.
    pub flows_without_row: u64,
    /// Number of rows that no recorded flow has.
    pub rows_without_flow: u64,
}

impl Joined {
    /// Reads a file. Its terms have no weight yet.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, lacks a column, has a column that cannot be
    /// a term, a value that is no finite number, or two rows about one flow.
    pub fn read(path: &Path) -> Result<Self, JoinError> {
        let unreadable = |reason: String| JoinError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(ParquetRecordBatchReaderBuilder::build)
            .map_err(|error| unreadable(error.to_string()))?;
        let schema = reader.schema();
        let columns: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        let keys = [JoinKey::Flow, JoinKey::Cookie];
        let keys: Vec<_> = (keys.into_iter())
            .filter(|key| columns.iter().any(|column| column == key.name()))
            .collect();
        let (&[key], 2..) = (&keys[..], columns.len()) else {
            return Err(JoinError::Columns {
                path: path.to_owned(),
                columns,
            });
        };
        let is_term = |column: &&String| *column != key.name();
        let names: Vec<String> = columns.iter().filter(is_term).cloned().collect();
        for (at, name) in names.iter().enumerate() {
            let reason = reason_against(name, names[..at].contains(name));
            if let Some(reason) = reason {
                return Err(JoinError::Column {
                    path: path.to_owned(),
                    column: name.clone(),
                    reason: reason.to_owned(),
                });
            }
        }
        let mut joined = Self {
            path: path.to_owned(),
            key,
            weights: vec![0.0; names.len()],
            names,
            rows: HashMap::new(),
            complete: false,
        };
        let mut places = HashMap::new();
        for batch in reader {
            joined.add(
                &batch.map_err(|error| unreadable(error.to_string()))?,
                &mut places,
            )?;
        }
        Ok(joined)
    }

    /// Checks that no term has the name of one of these columns of recordings.
    ///
    /// # Errors
    ///
    /// Returns an error that names the term.
    pub(super) fn beside(&self, columns: &Schema) -> Result<(), JoinError> {
        let taken = |name: &&String| columns.field_with_name(name).is_ok();
        match self.names.iter().find(taken) {
            None => Ok(()),
            Some(name) => Err(JoinError::Column {
                path: self.path.clone(),
                column: name.clone(),
                reason: "is the name of a column of the timeline".to_owned(),
            }),
        }
    }

    /// Gives terms weights in the reward: a decision earns, per window, the weight times the
    /// figure of its flow beside what the objective says. A weight below 0 makes a term a cost.
    ///
    /// # Errors
    ///
    /// Returns an error when the file has no such term, or a weight is not finite.
    pub fn weighed(mut self, weights: &BTreeMap<String, f64>) -> Result<Self, JoinError> {
        for (name, &weight) in weights {
            let Some(place) = self.names.iter().position(|own| own == name) else {
                return Err(JoinError::NoSuchTerm {
                    path: self.path,
                    name: name.clone(),
                    columns: self.names,
                });
            };
            if !weight.is_finite() {
                return Err(JoinError::Weight {
                    name: name.clone(),
                    weight,
                });
            }
            self.weights[place] = weight;
        }
        Ok(self)
    }

    /// Leaves out flows that have no row, also where no term has a weight.
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }

    /// Returns whether flows without a row are left out.
    pub fn is_complete(&self) -> bool {
        self.complete || self.weights.iter().any(|&weight| weight != 0.0)
    }

    /// Returns the names of the terms, in the order of the file's columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns, for each term, whether more of it is better: where its weight is above 0. Terms
    /// without a weight are taken for costs, as times and stalls are.
    pub fn more_is_better(&self) -> impl Iterator<Item = bool> {
        self.weights.iter().map(|&weight| weight > 0.0)
    }

    /// Returns the figures of a flow, in the order of [`names`](Self::names); `None` where the file
    /// has no row about it. A cookie of 0 is none.
    pub fn figures(&self, flow: u64, cookie: u64) -> Option<&Arc<[f64]>> {
        self.rows.get(&self.key_of(flow, cookie)?)
    }

    /// Returns what figures add to the reward per window.
    pub fn reward(&self, figures: &[f64]) -> f64 {
        let pairs = self.weights.iter().zip(figures);
        pairs.map(|(weight, figure)| weight * figure).sum()
    }

    /// Matches recorded flows, each with its cookie and its directory, with the rows.
    ///
    /// # Errors
    ///
    /// Returns an error when no flow has a row, or flows in different directories have the cookie
    /// of one.
    pub(super) fn count<'a>(
        &self,
        flows: impl Iterator<Item = (u64, u64, &'a Path)>,
    ) -> Result<JoinCounts, JoinError> {
        let mut used: HashMap<u64, &Path> = HashMap::new();
        let mut counts = JoinCounts::default();
        let (mut all, mut without_cookie) = (0, 0);
        for (flow, cookie, directory) in flows {
            all += 1;
            without_cookie += usize::from(cookie == 0);
            if self.figures(flow, cookie).is_none() {
                counts.flows_without_row += 1;
                continue;
            }
            counts.flows += 1;
            let key = self.key_of(flow, cookie).unwrap_or_default();
            let first = *used.entry(key).or_insert(directory);
            if self.key == JoinKey::Cookie && first != directory {
                return Err(JoinError::Ambiguous {
                    cookie,
                    first: first.to_owned(),
                    second: directory.to_owned(),
                });
            }
        }
        if counts.flows == 0 {
            return Err(JoinError::NoneMatched {
                path: self.path.clone(),
                key: self.key,
                rows: self.rows.len(),
                flows: all,
                without_cookie,
            });
        }
        counts.rows_without_flow = (self.rows.len() - used.len()) as u64;
        Ok(counts)
    }

    fn key_of(&self, flow: u64, cookie: u64) -> Option<u64> {
        match self.key {
            JoinKey::Flow => Some(flow),
            JoinKey::Cookie => (cookie != 0).then_some(cookie),
        }
    }

    /// Adds the rows of a batch. `places` has the number of each key's row.
    fn add(
        &mut self,
        batch: &RecordBatch,
        places: &mut HashMap<u64, usize>,
    ) -> Result<(), JoinError> {
        let column = |name: &str| -> ArrayRef {
            let found = batch.column_by_name(name).cloned();
            found.unwrap_or_else(|| unreachable!("a column of the file: {name}"))
        };
        let keys = column(self.key.name());
        let terms: Vec<_> = self.names.iter().map(|name| column(name)).collect();
        let before = places.len();
        for at in 0..batch.num_rows() {
            let row = before + at;
            let wrong = |column: &str, found: String, expected| JoinError::Value {
                path: self.path.clone(),
                row,
                column: column.to_owned(),
                found,
                expected,
            };
            let key = whole(&keys, at)
                .map_err(|found| wrong(self.key.name(), found, "a whole number from 1"))?;
            let mut figures = Vec::with_capacity(terms.len());
            for (name, term) in self.names.iter().zip(&terms) {
                let figure =
                    number(term, at).map_err(|found| wrong(name, found, "a finite number"))?;
                figures.push(figure);
            }
            match places.entry(key) {
                hash_map::Entry::Occupied(first) => {
                    return Err(JoinError::Twice {
                        path: self.path.clone(),
                        first: *first.get(),
                        row,
                        column: self.key,
                        key,
                    });
                }
                hash_map::Entry::Vacant(place) => place.insert(row),
            };
            self.rows.insert(key, figures.into());
        }
        Ok(())
    }
}

/// Returns why a column's name cannot be that of a term.
fn reason_against(name: &str, again: bool) -> Option<&'static str> {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.bytes().all(letter) {
        return Some("is no name of a term (lower-case letters, digits and _)");
    }
    again.then_some("is the name of another column")
}

/// Returns a value as a key, or what it is instead.
fn whole(column: &ArrayRef, at: usize) -> Result<u64, String> {
    let found = match column.data_type() {
        _ if column.is_null(at) => return Err("null".to_owned()),
        DataType::UInt64 => Some(column.as_primitive::<UInt64Type>().value(at)),
        DataType::UInt32 => Some(column.as_primitive::<UInt32Type>().value(at).into()),
        DataType::Int64 => u64::try_from(column.as_primitive::<Int64Type>().value(at)).ok(),
        DataType::Int32 => u64::try_from(column.as_primitive::<Int32Type>().value(at)).ok(),
        other => return Err(format!("a value of type {other}")),
    };
    found
        .filter(|&key| key != 0)
        .ok_or_else(|| "a number below 1".to_owned())
}

/// Returns a value as a number, or what it is instead.
fn number(column: &ArrayRef, at: usize) -> Result<f64, String> {
    let found = match column.data_type() {
        _ if column.is_null(at) => return Err("null".to_owned()),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(at),
        DataType::Float32 => column.as_primitive::<Float32Type>().value(at).into(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(at) as f64,
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(at).into(),
        DataType::UInt16 => column.as_primitive::<UInt16Type>().value(at).into(),
        DataType::UInt8 => column.as_primitive::<UInt8Type>().value(at).into(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(at) as f64,
        DataType::Int32 => column.as_primitive::<Int32Type>().value(at).into(),
        DataType::Int16 => column.as_primitive::<Int16Type>().value(at).into(),
        DataType::Int8 => column.as_primitive::<Int8Type>().value(at).into(),
        DataType::Boolean => f64::from(u8::from(column.as_boolean().value(at))),
        other => return Err(format!("a value of type {other}")),
    };
    match found.is_finite() {
        true => Ok(found),
        false => Err(found.to_string()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use arrow_array::{Float64Array, Int32Array, StringArray, UInt64Array};
    use arrow_schema::Field;
    use parquet::arrow::ArrowWriter;
    use tempfile::TempDir;

    use super::*;

    /// Writes a file with these columns.
    pub(crate) fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
        let batch = RecordBatch::try_from_iter(columns).expect("of the same length");
        let file = File::create(path).expect("a new file");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
        writer.write(&batch).expect("there is space");
        writer.close().expect("there is space");
    }

    fn keys(keys: &[u64]) -> ArrayRef {
        Arc::new(UInt64Array::from(keys.to_vec()))
    }

    fn numbers(values: &[f64]) -> ArrayRef {
        Arc::new(Float64Array::from(values.to_vec()))
    }

    #[test]
    fn columns_become_terms_with_weights() {
        let directory = TempDir::new().expect("a scratch directory");
        let path = directory.path().join("served.parquet");
        write(
            &path,
            vec![
                ("stalls", Arc::new(Int32Array::from(vec![3, 0])) as ArrayRef),
                ("cookie", keys(&[7, 9])),
                ("completion_s", numbers(&[1.5, 0.5])),
            ],
        );
        let joined = Joined::read(&path).expect("sound");
        assert_eq!(joined.names(), ["stalls", "completion_s"]);
        assert!(!joined.is_complete());
        let weights = BTreeMap::from([("completion_s".to_owned(), -2.0)]);
        let joined = joined.weighed(&weights).expect("one of them");
        assert!(joined.is_complete());
        let figures = joined.figures(1, 7).expect("there is a row");
        assert_eq!(&figures[..], [3.0, 1.5]);
        assert_eq!(joined.reward(figures), -3.0);
        assert_eq!(joined.figures(7, 0), None, "flows are not cookies");
        let (here, there) = (Path::new("a"), Path::new("b"));
        let counts = joined
            .count([(1, 7, here), (2, 7, here), (3, 8, there), (4, 0, here)].into_iter())
            .expect("some match");
        let expected = JoinCounts {
            flows: 2,
            flows_without_row: 2,
            rows_without_flow: 1,
        };
        assert_eq!(counts, expected);
        let same = joined.count([(1, 7, here), (2, 7, there)].into_iter());
        let error = same.expect_err("on two hosts").to_string();
        assert!(error.contains("in a and in b have the cookie 7"), "{error}");
        let none = joined.count([(1, 0, here)].into_iter());
        let error = none.expect_err("no cookie").to_string();
        assert!(
            error.contains("none of 1 recorded flows") && error.contains("1 of the flows"),
            "{error}"
        );
        let weights = BTreeMap::from([("rebuffering".to_owned(), -1.0)]);
        let error = joined.weighed(&weights).expect_err("no such").to_string();
        assert!(
            error.contains("rebuffering") && error.contains("stalls, completion_s"),
            "{error}"
        );
    }

    #[test]
    fn files_that_cannot_be_joined_are_refused_with_the_reason() {
        let directory = TempDir::new().expect("a scratch directory");
        let refused = |columns: Vec<(&str, ArrayRef)>| {
            let path = directory.path().join("a.parquet");
            write(&path, columns);
            let error = Joined::read(&path).expect_err("refused").to_string();
            assert!(error.contains("a.parquet"), "{error}");
            error
        };
        let text = || Arc::new(StringArray::from(vec!["x", "y"])) as ArrayRef;
        let gap = Arc::new(Float64Array::from(vec![Some(1.0), None])) as ArrayRef;
        let term = || numbers(&[1.0, 2.0]);
        for (columns, expected) in [
            (vec![("completion_s", term())], "expected one of `flow` and"),
            (vec![("cookie", keys(&[1, 2]))], "columns of numbers"),
            (
                vec![
                    ("cookie", keys(&[1, 2])),
                    ("flow", keys(&[1, 2])),
                    ("s", term()),
                ],
                "expected one of",
            ),
            (
                vec![("cookie", keys(&[4, 4])), ("s", term())],
                "rows 0 and 1 both have cookie 4",
            ),
            (
                vec![("flow", keys(&[4, 0])), ("s", term())],
                "row 1, column `flow`: a number below 1",
            ),
            (
                vec![("flow", text()), ("s", term())],
                "row 0, column `flow`: a value of type Utf8",
            ),
            (
                vec![("flow", keys(&[1, 2])), ("url", text())],
                "row 0, column `url`: a value of type Utf8",
            ),
            (
                vec![("flow", keys(&[1, 2])), ("s", gap)],
                "row 1, column `s`: null",
            ),
            (
                vec![("flow", keys(&[1, 2])), ("s", numbers(&[1.0, f64::NAN]))],
                "row 1, column `s`: NaN",
            ),
            (
                vec![("flow", keys(&[1, 2])), ("Time to last byte", term())],
                "is no name of a term",
            ),
        ] {
            let error = refused(columns);
            assert!(error.contains(expected), "{error}\nlacks {expected}");
        }
        let path = directory.path().join("reward.parquet");
        write(&path, vec![("flow", keys(&[1, 2])), ("reward", term())]);
        let joined = Joined::read(&path).expect("sound by itself");
        let columns = Schema::new(vec![Field::new("reward", DataType::Float32, true)]);
        let error = joined.beside(&columns).expect_err("taken").to_string();
        assert!(
            error.contains("`reward` is the name of a column"),
            "{error}"
        );
        let path = directory.path().join("text.parquet");
        std::fs::write(&path, "cookie,completion_s\n").expect("there is space");
        assert!(matches!(
            Joined::read(&path),
            Err(JoinError::Unreadable { .. })
        ));
    }
}
