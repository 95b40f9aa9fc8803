//! Column types shared by recordings and the datasets made from them.

use std::sync::Arc;

use arrow_array::{
    ListArray,
    builder::{Float32Builder, ListBuilder},
};
use arrow_schema::{DataType, Field, TimeUnit};

/// The time zone of all timestamps.
pub const UTC: &str = "UTC";

/// The type of timestamps: UTC with a resolution of 1 ns.
pub fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into()))
}

/// The type of strings with few distinct values, stored once each in a dictionary.
pub fn text() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The field of a list's elements: 32-bit floats that are never null.
pub fn number() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Float32, false))
}

/// Builds a column of lists of [`number`]s, one list per row; `None` becomes null.
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
