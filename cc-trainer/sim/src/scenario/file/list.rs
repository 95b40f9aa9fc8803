//! Lists of tables in scenario files.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::SeqAccessDeserializer},
};
use toml::Spanned;

/// A list of tables, each with its position in the file.
#[derive(Debug)]
pub(super) struct List<T>(pub(super) Vec<Spanned<T>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// States in errors how a list is written, because single brackets around a table's name
        /// are a frequent mistake.
        struct Visitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a list: [[double brackets]] around the name of each table, or [{ … }, …] as \
                     a value",
                )
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, items: A) -> Result<List<T>, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(items)).map(List)
            }
        }

        deserializer.deserialize_seq(Visitor(PhantomData))
    }
}
