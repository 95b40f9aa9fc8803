//! The kinds of columns that recordings and what is made of them have in common.

use std::sync::Arc;

use arrow_array::{
    ListArray,
    builder::{Float32Builder, ListBuilder},
};
use arrow_schema::{DataType, Field, TimeUnit};

/// The time zone of every time.
pub const UTC: &str = "UTC";

/// A time, to the nanosecond.
pub fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into()))
}

/// Text of which there is little: each one is stored once.
pub fn text() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// An element of a list of numbers.
pub fn number() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Float32, false))
}

/// Lists of [`number`]s, a row each; null where there is none.
pub fn numbers<'a>(rows: impl IntoIterator<Item = Option<&'a [f32]>>) -> ListArray {
    let mut list = ListBuilder::new(Float32Builder::new()).with_field(number());
    for row in rows {
        match row {
            Some(values) => {
                list.values().append_slice(values);
                list.append(true);
            }
            None => list.append(false),
        }
    }
    list.finish()
}
