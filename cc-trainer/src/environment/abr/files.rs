//! Files of traces and videos.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cc_abr::{
    trace::{self, Trace, TraceError},
    video::{self, Video, VideoError},
};
use cc_core::regular_file;

/// Largest file of a trace or a video, bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Name of the files in Pensieve's format of sizes, without the number of the quality.
const SIZES: &str = "video_size_";

/// Traces that are evaluated together.
#[derive(Clone, Debug)]
pub struct TraceSet {
    /// Name of the set: that of its directory or file.
    pub name: String,
    /// The traces, in the order of their files' names.
    pub traces: Vec<Arc<Trace>>,
}

/// Why traces or a video could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system could not read a file or a directory.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// A trace has a fault, which is named with its file and line.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A video has a fault.
    #[error("{}: {source}", path.display())]
    Video {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with its content, and in which line.
        source: VideoError,
    },
    /// A directory has no file.
    #[error("{}: there is no file in it; give a directory of {what}", path.display())]
    Empty {
        /// The directory without a file.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
    },
}

/// Reads a trace, or all traces of a directory: its files, without those of its directories and
/// hidden ones.
///
/// # Errors
///
/// Returns the first file that cannot be read or has a fault.
pub fn traces(path: &Path) -> Result<TraceSet, FileError> {
    let files = match path.is_dir() {
        true => files_of(path)?,
        false => vec![path.to_owned()],
    };
    if files.is_empty() {
        let (path, what) = (path.to_owned(), "trace files");
        return Err(FileError::Empty { path, what });
    }
    let read = |file: &PathBuf| Ok(Arc::new(trace::parse(&text(file)?, file)?));
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(TraceSet {
        name: name.to_string_lossy().into_owned(),
        traces: files.iter().map(read).collect::<Result<_, FileError>>()?,
    })
}

/// Reads a video: a file in TOML ([`Video::parse`]), or a directory with Pensieve's files
/// `video_size_0`, `video_size_1` and so on, one for each of the bitrates `kbps` and with chunks of
/// `chunk_s`. `chunks` of such a directory are played; `None` plays all.
///
/// # Errors
///
/// Returns the first file that cannot be read, or what is wrong with the video.
pub fn video(
    path: &Path,
    kbps: &[f64],
    chunk_s: f64,
    chunks: Option<usize>,
) -> Result<Video, FileError> {
    let fault = |path: &Path| {
        let path = path.to_owned();
        move |source| FileError::Video { path, source }
    };
    if !path.is_dir() {
        return Video::parse(&text(path)?).map_err(fault(path));
    }
    let of_quality = |quality: usize| {
        let file = path.join(format!("{SIZES}{quality}"));
        video::parse_sizes(&text(&file)?).map_err(fault(&file))
    };
    let sizes: Vec<Vec<u32>> = (0..kbps.len()).map(of_quality).collect::<Result<_, _>>()?;
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    Video::new(&name, kbps.to_vec(), chunk_s, chunks, &sizes).map_err(fault(path))
}

fn text(path: &Path) -> Result<String, FileError> {
    regular_file::read_to_string(path, MAX_BYTES).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Read { path, source }
}

fn files_of(dir: &Path) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_file() && !name.to_string_lossy().starts_with('.') {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_set_in_the_order_of_its_names() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect(name);
        assert!(matches!(traces(dir.path()), Err(FileError::Empty { .. })));
        write("b", "0 1\n1 2\n");
        write("a", "0\n700\n1400\n");
        write(".hidden", "no trace");
        fs::create_dir(dir.path().join("c")).expect("a directory");
        let set = traces(dir.path()).expect("two traces");
        let names: Vec<&str> = set.traces.iter().map(|trace| trace.name()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            traces(&dir.path().join("b")).map(|set| set.name).ok(),
            Some("b".into())
        );
        write("d", "0 1\n1 x\n");
        let error = traces(dir.path()).expect_err("a faulty line").to_string();
        assert!(error.contains("d:2: `1 x`"), "{error}");
        let error = traces(&dir.path().join("none"))
            .expect_err("no file")
            .to_string();
        assert!(error.contains("none"), "{error}");
    }

    #[test]
    fn both_formats_of_videos_are_read() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect(name);
        write("video_size_0", "10\n20\n");
        write("video_size_1", "30\n40\n");
        write(
            "v.toml",
            "name = \"v\"\nchunk_s = 2.0\n[[quality]]\nkbps = 1\nsizes = [5]\n",
        );
        let found = video(dir.path(), &[1.0, 2.0], 4.0, Some(1)).expect("two qualities");
        assert_eq!(
            (found.sizes(), found.chunks()),
            (&[vec![10, 30], vec![20, 40]][..], 1)
        );
        let found = video(&dir.path().join("v.toml"), &[], 4.0, None).expect("one quality");
        assert_eq!((found.kbps(), found.chunk_s()), (&[1.0][..], 2.0));
        let error = video(dir.path(), &[1.0, 2.0, 3.0], 4.0, None).expect_err("no third file");
        assert!(error.to_string().contains("video_size_2"), "{error}");
        write("video_size_1", "30\nx\n");
        let error = video(dir.path(), &[1.0, 2.0], 4.0, None).expect_err("no size");
        assert!(
            error.to_string().contains("video_size_1: line 2"),
            "{error}"
        );
    }
}
