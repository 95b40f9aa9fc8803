// Plays the video of session.json with dash.js, and sends what the player saw to /result.
//
// session.json: {manifest, decide, rule, kbps, chunks, chunk_s, sizes, first_quality,
// buffer_cap_s}. With `decide`, an URL of `cc-trainer abr serve`, a rule of this page asks there
// for the quality of each chunk; otherwise `rule` names one of dash.js's own: dynamic, bola or
// throughput. Without buffer_cap_s (s) dash.js waits above a buffer of its own.
//
// Times are in ms on the page's own clock (performance.now), unless a name says otherwise.
"use strict";

(async () => {
  const session = await (await fetch("session.json")).json();
  const video = document.querySelector("video");
  const levels = session.kbps.length;
  const began = performance.now();

  // One entry per chunk that has arrived, in the order of the chunks.
  const chunks = [];
  // Time of the first request for each chunk: an abandoned download is part of its chunk's.
  const requested = new Map();
  // Time that each decision took, from the question to the answer.
  const decisions = [];
  const errors = [];
  let abandoned = 0;
  let finished = false;

  // Rebuffering is the time by which playback is behind the clock since it began. This counts what
  // a viewer sees, whatever the browser and dash.js call a stall.
  let playing = null;
  const behind = () => {
    if (playing === null) return 0;
    const played = (video.currentTime - playing.media) * 1e3;
    return Math.max(performance.now() - playing.time - played, 0);
  };

  // A stall is an interruption that the browser reports, by one event or several.
  let stalls = 0;
  let stalled = false;
  video.addEventListener("playing", () => {
    playing ??= { time: performance.now(), media: video.currentTime };
    stalled = false;
  });
  video.addEventListener("waiting", () => {
    if (playing !== null && !stalled) stalls += 1;
    stalled = playing !== null;
  });

  // Video ahead of the playing position, s. What was appended a moment ago may not be in yet, so
  // the end is that of the last chunk that has arrived.
  const buffer = () => Math.max(chunks.length * session.chunk_s - video.currentTime, 0);

  const ask = () => {
    const chunk = chunks.length;
    const body = JSON.stringify({
      kbps: session.kbps,
      chunk_s: session.chunk_s,
      buffer_s: buffer(),
      chunks_left: session.chunks - chunk,
      history: chunks.slice(-1000).map((one) => ({
        quality: one.quality,
        bytes: one.bytes,
        ms: one.ms,
        buffer_s: one.buffer_s,
      })),
      next_bytes: session.sizes.slice(chunk, chunk + 10),
    });
    // dash.js asks its rules synchronously, so the rule has to wait for its answer. As plain text
    // the request needs no preflight, which would cost a second round trip.
    const request = new XMLHttpRequest();
    const asked = performance.now();
    request.open("POST", session.decide, false);
    request.setRequestHeader("Content-Type", "text/plain");
    request.send(body);
    const answer = JSON.parse(request.responseText);
    if (request.status !== 200) throw new Error(JSON.stringify(answer));
    decisions.push(performance.now() - asked);
    return answer.quality;
  };

  // dash.js may ask more than once before a chunk; its first answer holds.
  let decided = { chunk: -1, quality: null };
  function Rule() {
    const { context } = this;
    const SwitchRequest = dashjs.FactoryMaker.getClassFactoryByName("SwitchRequest");
    const getSwitchRequest = (rules) => {
      const none = SwitchRequest(context).create();
      if (chunks.length >= session.chunks) return none;
      if (decided.chunk !== chunks.length) {
        try {
          decided = { chunk: chunks.length, quality: ask() };
        } catch (error) {
          // One is enough: whatever comes after it would not be what the scheme decided.
          fail(`the decision for chunk ${chunks.length}: ${error.message}`);
          return none;
        }
      }
      const controller = rules.getAbrController();
      const all = controller.getPossibleVoRepresentations(rules.getMediaInfo(), false);
      // In the order of the bitrates, as the qualities are.
      all.sort((one, next) => one.bandwidth - next.bandwidth);
      return SwitchRequest(context).create(all[decided.quality], { rule: "decide" });
    };
    return { getClassName: () => "DecideRule", getSwitchRequest, reset: () => {} };
  }
  Rule.__dashjs_factory_name = "DecideRule";

  // dash.js asks for a chunk when the buffer would be below its limit with it, Pensieve when the
  // buffer is not above the cap without it.
  const limit = session.buffer_cap_s && session.buffer_cap_s + session.chunk_s;
  const limits = limit && {
    bufferTimeDefault: limit,
    bufferTimeAtTopQuality: limit,
    bufferTimeAtTopQualityLongForm: limit,
  };

  const own = (name) => !session.decide && (session.rule === name || session.rule === "dynamic");
  const player = dashjs.MediaPlayer().create();
  player.updateSettings({
    debug: { logLevel: dashjs.Debug.LOG_LEVEL_ERROR },
    streaming: {
      // An init segment is fetched once per quality, not at each change.
      cacheInitSegments: true,
      buffer: {
        ...limits,
        // Playback stops when the browser has nothing left to show, and not 0.3 s before.
        setStallState: false,
        // A chunk that has arrived is not downloaded again in another quality.
        fastSwitchEnabled: false,
      },
      text: { defaultEnabled: false },
      utcSynchronization: { enabled: false },
      abr: {
        initialBitrate: { video: session.kbps[session.first_quality] },
        rules: {
          throughputRule: { active: own("throughput") },
          bolaRule: { active: own("bola") },
          insufficientBufferRule: { active: !session.decide },
          switchHistoryRule: { active: !session.decide },
          droppedFramesRule: { active: false },
          abandonRequestsRule: { active: !session.decide },
        },
      },
    },
  });
  if (session.decide) {
    const rule = dashjs.FactoryMaker.getClassFactory(Rule);
    player.addABRCustomRule("qualitySwitchRules", "DecideRule", rule);
  }

  const finish = async () => {
    if (finished) return;
    finished = true;
    const result = {
      dash: player.getVersion(),
      browser: navigator.userAgent,
      startup_ms: playing === null ? null : playing.time - began,
      stalls,
      abandoned,
      decisions,
      chunks,
      errors,
    };
    await fetch("result", { method: "POST", body: JSON.stringify(result) });
    document.title = "finished";
  };
  const fail = (message) => {
    errors.push(message);
    void finish();
  };

  const events = dashjs.MediaPlayer.events;
  const isMedia = (request) => request.mediaType === "video" && request.type === "MediaSegment";
  player.on(events.FRAGMENT_LOADING_STARTED, ({ request }) => {
    if (isMedia(request) && !requested.has(request.index)) {
      requested.set(request.index, { time: performance.now(), behind: behind() });
    }
  });
  player.on(events.FRAGMENT_LOADING_ABANDONED, () => {
    abandoned += 1;
  });
  player.on(events.FRAGMENT_LOADING_COMPLETED, ({ request, error }) => {
    // dash.js repeats what failed, and reports an error when it gives up.
    if (!isMedia(request) || error) return;
    const index = request.index;
    if (index !== chunks.length) {
      fail(`chunk ${index} arrived instead of ${chunks.length}`);
      return;
    }
    const quality = session.kbps.findIndex(
      (kbps) => Math.round(kbps * 1e3) === request.representation.bandwidth,
    );
    const first = requested.get(index);
    const before = buffer();
    chunks.push({
      quality,
      bytes: session.sizes[index][quality],
      received: request.bytesTotal || request.bytesLoaded,
      ms: performance.now() - first.time,
      // Of the first chunk, the startup; then what playback fell behind since the chunk before it.
      behind_ms: behind(),
      buffer_before_s: before,
      buffer_s: before + session.chunk_s,
      requested_ms: first.time - began,
    });
    // The video's last seconds cannot stall any more: nothing is left to download.
    if (chunks.length === session.chunks) void finish();
  });
  player.on(events.ERROR, ({ error }) => fail(`dash.js: ${error.code} ${error.message}`));
  player.on(events.PLAYBACK_ERROR, () => fail(`the video: ${video.error?.message}`));
  window.addEventListener("error", ({ message }) => fail(`the page: ${message}`));
  if (levels === 0) fail("the video has no qualities");
  player.initialize(video, session.manifest, true);
})();
