//! Writes rows as one row group, directly to Parquet's columns, one after the other.
//!
//! Arrow's writer keeps the compressors and pages of all columns until the group ends, and the
//! kernel has to provide that memory anew for every group. Here each column reuses the memory of
//! the one before.

use std::io::Write;

use bytemuck::cast_slice;
use bytes::Bytes;
use cc_ebpf::{Decision, FEATURES, Mode, Statistics};
use parquet::{
    data_type::{
        BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type,
    },
    errors::ParquetError,
    file::writer::{SerializedFileWriter, SerializedRowGroupWriter},
};

use cc_core::rows::{Decided, FileHeader, NO_MODE, Row};

/// Writes the rows as one row group, in the columns of [`super::schema()`] and their order.
pub(super) fn write_group<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    header: &FileHeader,
    rows: &[&Row],
) -> Result<(), ParquetError> {
    let mut columns = Columns {
        group: writer.next_row_group()?,
        rows,
    };
    let applied = |row: &Row| Decision::from_cell(row.window.decision);
    let actions = ByteArray::from(header.interface.actions.to_string().as_str());
    let policy = ByteArray::from(header.policy.as_str());

    columns.always::<Int64Type>(|row| row.flow as i64)?;
    columns.always::<Int32Type>(|row| row.sequence as i32)?;
    columns.always::<Int64Type>(|row| header.time_ns(row))?;
    columns.always::<Int32Type>(|row| row.window.header.slot as i32)?;
    columns.always::<Int32Type>(|row| row.window.header.generation as i32)?;
    columns.always::<Int32Type>(|row| row.window.index as i32)?;
    columns.always::<Int64Type>(|row| {
        let window = &row.window;
        window.header.time_ns.wrapping_sub(window.start_ns) as i64
    })?;
    columns.always::<Int32Type>(|row| row.window.acks as i32)?;
    columns.always::<Int32Type>(|row| row.window.mss as i32)?;
    columns.maybe::<ByteArrayType>(|row| mode_name(row.window.mode))?;
    columns.always::<Int64Type>(|row| row.initial_cwnd_bytes as i64)?;
    columns.statistics()?;
    columns.maybe::<Int32Type>(|row| Some(applied(row)?.window as i32))?;
    columns.maybe::<Int32Type>(|row| Some(applied(row)?.cwnd as i32))?;
    columns.maybe::<Int64Type>(|row| {
        applied(row).map(|_| header.utc_ns(row.window.decision_taken_ns))
    })?;
    columns.decided::<Int32Type>(|decision| decision.action.map(i32::from))?;
    columns.decided::<FloatType>(|decision| decision.probability)?;
    columns.lists(|row| row.decision.as_ref()?.probabilities.as_deref())?;
    columns.always::<ByteArrayType>(|_| actions.clone())?;
    columns.always::<Int32Type>(|row| row.window.cwnd as i32)?;
    columns.decided::<Int32Type>(|decision| Some(decision.base_cwnd as i32))?;
    columns.decided::<Int32Type>(|decision| Some(decision.cwnd as i32))?;
    columns.decided::<Int64Type>(|decision| decision.delay_ns.map(|delay| delay as i64))?;
    // MB/s to Mbit/s: a power of two, so nothing is rounded.
    columns.always::<DoubleType>(|row| row.terms.throughput * 8.0)?;
    columns.always::<DoubleType>(|row| row.terms.delay)?;
    columns.always::<DoubleType>(|row| row.terms.loss)?;
    columns.always::<FloatType>(|row| row.reward)?;
    columns.always::<ByteArrayType>(|_| policy.clone())?;
    columns.always::<BoolType>(|row| row.end)?;
    columns.maybe::<ByteArrayType>(|row| row.local.as_deref().map(ByteArray::from))?;
    columns.maybe::<ByteArrayType>(|row| row.remote.as_deref().map(ByteArray::from))?;
    columns.always::<Int64Type>(|row| row.cgroup as i64)?;
    columns.always::<Int64Type>(|row| row.cookie as i64)?;
    columns.always::<Int32Type>(|row| row.netns as i32)?;
    columns.always::<Int32Type>(|row| row.window.app_limited_acks as i32)?;
    columns.always::<Int32Type>(|row| row.window.marked as i32)?;
    columns.maybe::<Int32Type>(|row| Some(row.path?.rtt_us? as i32))?;
    columns.maybe::<Int32Type>(|row| Some(row.path?.flows as i32))?;
    columns.group.close()?;
    Ok(())
}

/// Writes one column after the other. Unsigned numbers are written as signed ones of the same bits,
/// as Parquet specifies.
struct Columns<'a, W: Write> {
    group: SerializedRowGroupWriter<'a, W>,
    rows: &'a [&'a Row],
}

impl<W: Write + Send> Columns<'_, W> {
    /// Writes the next column, which has no nulls.
    fn always<T: DataType>(&mut self, value: impl Fn(&Row) -> T::T) -> Result<(), ParquetError> {
        let values: Vec<_> = self.rows.iter().map(|row| value(row)).collect();
        self.column::<T>(&values, None, None)
    }

    /// Writes the next column, with null where `value` returns `None`.
    fn maybe<T: DataType>(
        &mut self,
        value: impl Fn(&Row) -> Option<T::T>,
    ) -> Result<(), ParquetError> {
        let mut values = Vec::with_capacity(self.rows.len());
        let mut present = Vec::with_capacity(self.rows.len());
        for row in self.rows {
            let value = value(row);
            present.push(i16::from(value.is_some()));
            values.extend(value);
        }
        self.column::<T>(&values, Some(&present), None)
    }

    /// Writes the next column from the rows' decisions, with null where there is no decision or
    /// `value` returns `None`.
    fn decided<T: DataType>(
        &mut self,
        value: impl Fn(&Decided) -> Option<T::T>,
    ) -> Result<(), ParquetError> {
        self.maybe::<T>(|row| value(row.decision.as_ref()?))
    }

    /// Writes the next column, of lists of numbers, with null where `list` returns `None`.
    fn lists(&mut self, list: impl Fn(&Row) -> Option<&[f32]>) -> Result<(), ParquetError> {
        // Definition level: 0 for null, 1 for an empty list, 2 for a number. Repetition level: 1
        // for a number that continues a list.
        let (mut definition, mut repetition) = (Vec::new(), Vec::new());
        let mut values = Vec::new();
        for row in self.rows {
            let list = list(row);
            let numbers = list.unwrap_or_default();
            if numbers.is_empty() {
                definition.push(i16::from(list.is_some()));
                repetition.push(0);
            }
            for (i, &number) in numbers.iter().enumerate() {
                definition.push(2);
                repetition.push(i16::from(i > 0));
                values.push(number);
            }
        }
        self.column::<FloatType>(&values, Some(&definition), Some(&repetition))
    }

    /// Writes the next hundred columns: five statistics of each feature.
    fn statistics(&mut self) -> Result<(), ParquetError> {
        let sum = self.transposed(|statistics| &statistics.sum);
        let squares = self.transposed(|statistics| &statistics.squares);
        let min = self.transposed(|statistics| &statistics.min);
        let max = self.transposed(|statistics| &statistics.max);
        let reference = self.transposed(|statistics| &statistics.reference);
        for feature in 0..FEATURES {
            self.column::<Int64Type>(cast_slice(&sum[feature]), None, None)?;
            self.column::<Int64Type>(cast_slice(&squares[feature]), None, None)?;
            self.column::<Int32Type>(cast_slice(&min[feature]), None, None)?;
            self.column::<Int32Type>(cast_slice(&max[feature]), None, None)?;
            self.column::<Int32Type>(cast_slice(&reference[feature]), None, None)?;
        }
        Ok(())
    }

    /// Returns one statistic of all features, one column each. Rows are read one by one, because
    /// the values of a row lie together in memory.
    fn transposed<T: Copy>(
        &self,
        of: impl Fn(&Statistics) -> &[T; FEATURES],
    ) -> [Vec<T>; FEATURES] {
        let mut columns = [(); FEATURES].map(|()| Vec::with_capacity(self.rows.len()));
        for row in self.rows {
            for (column, &value) in columns.iter_mut().zip(of(&row.window.features)) {
                column.push(value);
            }
        }
        columns
    }

    /// Writes the next column of the schema with the given levels.
    fn column<T: DataType>(
        &mut self,
        values: &[T::T],
        definition: Option<&[i16]>,
        repetition: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let column = self.group.next_column()?;
        let mut column =
            column.ok_or_else(|| ParquetError::General("the schema has no more columns".into()))?;
        column
            .typed::<T>()
            .write_batch(values, definition, repetition)?;
        column.close()
    }
}

/// Returns the name of a [`cc_ebpf::WindowRecord::mode`], or `None` for flows that are only
/// observed.
fn mode_name(raw: u32) -> Option<ByteArray> {
    let name = |mode: Mode| Bytes::from_static(mode.name().as_bytes()).into();
    (raw != NO_MODE).then(|| name(Mode::from_raw(raw)))
}
