"""One sampling run: it describes each model call, gives it its gate, and records the outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from ...dbcache.calls import CallInfo, CallOutcome, base_name
from ...dbcache.gate import CallGate
from ...dbcache.proving import StackProver
from ...dbcache.session import DBCacheSession
from ...dbcache.steps import StepCounter
from ...stack.call import CallResult
from ...stack.layout import StackLayout
from ...stack.outlook import Outlook, head_plan
from ..attachments import attached
from ..families.find import find_stack, lists_left_alone, unwrapped
from ..families.row import table_row, with_argument_names
from ..streaming.shared_state import BuiltEngine, copies_of, timing_of
from ..versions import comfyui_version, keeping_context
from .control_ranges import ControlRanges, levels_at
from .describe import call_info, scheduled_strengths
from .neighbours import whole_step_cache
from .noise_levels import SigmaReader, foretold_levels
from .progress import show_on_node
from .report import CallRecord, RunReport

log = logging.getLogger("dit_layerwise_offload.run")

NO_CACHE = "DBCache is not on this model"
COMPILED_WHOLE = (
    "The model is compiled as a whole: nothing of it runs compiled while DiT Layerwise Offload or DBCache is on it."
    " Compile its blocks one by one instead."
)


class SamplingRun:
    """Made when sampling starts and closed when it ends, also by an error or an interrupt.

    Args:
        patcher: the model patcher that is sampled.
        sigmas: the schedule, of shape (steps + 1,).
        sampler: ComfyUI's sampler object.
        conds: the guider's lists of conditions, by name.
    """

    def __init__(self, patcher: Any, sigmas: torch.Tensor, sampler: Any = None, conds: Any = None) -> None:
        self._model = patcher.model
        self._root = unwrapped(patcher.model.diffusion_model)
        stack = find_stack(self._root)
        self.counter = StepCounter(sigmas.tolist())
        self._levels = SigmaReader(foretold_levels(sampler, sigmas, patcher))
        given = attached(patcher)
        self._box = given.report
        self._report = RunReport(
            model=type(patcher.model).__name__,
            patcher=type(patcher).__name__,
            comfyui=comfyui_version,
            engine=given.engine,
            engine_reason=given.engine_reason,
            steps=self.counter.steps,
            blocks=len(stack.blocks),
        )
        rules = given.cache
        self._rules = rules
        self._node_id = given.node_id
        self._unproven = ""
        self._copied_before = copies_of(self._root)
        self._explained_placement = getattr(patcher, "explained_placement", lambda: "")
        self.session: DBCacheSession | None = None
        self._controls = ControlRanges()
        if rules is not None:
            # the model itself has a patched one, as the shift nodes make it, only once it is loaded
            to_sigma = patcher.get_model_object("model_sampling").percent_to_sigma
            self._controls = ControlRanges(conds, to_sigma)
            self._open = levels_at((rules.start_percent, rules.end_percent), to_sigma)
            self._report.threshold = rules.threshold
            if stack.layout is not None:
                self._open_session(stack.layout)

    def _open_session(self, layout: StackLayout) -> None:
        self.session = DBCacheSession(self._rules, self.counter.steps, layout, keeping_context())
        for note in self.session.notes:
            log.info("%s", note)

    def __deepcopy__(self, memo: dict) -> SamplingRun:
        """A run travels in ComfyUI's options; whoever copies those deeply still means this run."""
        return self

    def warn_of_neighbours(self, model_options: Mapping[str, Any]) -> None:
        """Warn of nodes that came after DBCache and do not go together with it."""
        other = whole_step_cache(model_options)
        if other and self._rules is not None:
            self._note_once(f"DBCache: {other} on the same model skips whole steps; remove one of the two.")

    def _note_once(self, text: str, level: int = logging.WARNING) -> None:
        if text not in self._report.notes:
            self._report.notes.append(text)
            log.log(level, "%s", text)

    def covers(self, diffusion_model: Any) -> bool:
        """Whether calls of ``diffusion_model`` belong to this run: another device's copy of the model runs plainly."""
        return unwrapped(diffusion_model) is self._root

    def begin_evaluation(self) -> None:
        """The sampler asks for a prediction, which may take several model calls."""
        self._levels.begin_evaluation()

    def describe(self, options: Mapping[str, Any], control: Any) -> CallInfo:
        """Describe a call by its ``transformer_options`` and its control input. Reads one number back from the device,
        the sigma, where the sampler's noise levels could not be foretold."""
        if self._model.diffusion_model is not self._root:
            self._note_once(COMPILED_WHOLE)
        sigma = self._levels.sigma(options.get("sigmas"))
        return call_info(
            options,
            control,
            step=self.counter.at(sigma),
            sigma=sigma,
            last=self.counter.at_last,
            closed=self._closed(sigma),
            controls=self._controls,
            strengths=scheduled_strengths(self._model),
        )

    def gate_for(self, call: CallInfo) -> CallGate | StackProver | None:
        """Return the cache's gate of a call, or the prover of a stack that no table describes; ``None`` when DBCache is
        not on the model, or the stack was not proven."""
        if self.session is not None:
            return CallGate(self.session, call)
        return StackProver(self._report.blocks, call) if self._is_proving else None

    @property
    def _is_proving(self) -> bool:
        return self._rules is not None and self.session is None and not self._unproven

    def outlook(self, call: CallInfo) -> Outlook:
        """Return the blocks that are certain to run in a call and after it, before its first block runs."""
        if self.session is not None:
            return self.session.outlook(call)
        total = self._report.blocks
        if not self._is_proving:
            return Outlook(next_head=None if call.last else total)
        # a call that proves a stack opens the cache for the next one
        return Outlook(head_plan(total, total), next_head=None if call.last else self._rules.fn)

    def finish_call(self, gate: CallGate | StackProver) -> None:
        """Take over the result of a call's gate: a stack that is proven now opens the session."""
        if self.session is not None:
            self._report.cache_bytes = max(self._report.cache_bytes, self.session.kept_bytes)
        if isinstance(gate, StackProver):
            layout = gate.layout()
            if layout is not None:
                stack = find_stack(self._root)
                layout = with_argument_names(layout, unwrapped(stack.blocks[0]))
                self._open_session(layout)
                row = table_row(stack.family, layout)
                others = ", ".join(lists_left_alone(self._root, stack.family))
                left = f"the blocks in {others} stay as they are; " if others else ""
                self._note_once(
                    f"DBCache: no table describes this model; {left}proven on this call: {row}", logging.INFO
                )
            else:
                self._unproven = f"not supported: {gate.why}"
                self._note_once(f"DBCache: {gate.why} in this model, which no table describes. It is computed exactly.")

    def record(self, call: CallInfo, result: CallResult[CallOutcome], engine: BuiltEngine | None) -> None:
        """Keep the outcome of a call that ``engine`` streamed, if one did."""
        outcome = result.outcome or CallOutcome(base_name(call.kinds), False, self._unproven or NO_CACHE)
        record = CallRecord(
            step=call.step,
            sigma=call.sigma,
            branch=outcome.branch,
            outcome="hit" if outcome.hit else "miss",
            reason=outcome.reason,
            diffs=outcome.diffs,
            blocks_run=result.ran,
            copies=result.copies,
        )
        self._report.calls.append(record)
        if engine is not None:
            self._report.notes += [note for note in engine.notes if note not in self._report.notes]
            self._report.streamed_blocks = sorted({*self._report.streamed_blocks, *engine.streamer.weights})
            self._report.peak_slot_bytes = max(self._report.peak_slot_bytes, engine.streamer.peak_slot_bytes)
        if self._rules is None:
            return
        text = f"step {call.step + 1} of {self.counter.steps}, {record.branch}: {record.outcome} ({record.reason})"
        show_on_node(self._node_id, text)
        if self._rules.verbose:
            log.info("%s", text)

    def close(self) -> None:
        """Drop the run's tensors and hand its report over."""
        self._report.placement = self._explained_placement()
        self._report.copies = copies_of(self._root).since(self._copied_before)
        for call in self._report.calls:
            call.copies = call.copies.copy()  # a finished report stays as it is
        timing = timing_of(self._root)
        self._report.block_ms = timing.compute_ms if timing is not None else None
        if self.session is not None:
            self._report.notes += self.session.notes
            hint = "" if self.session.off else self._report.why_nothing_hit()
            if hint:
                self._report.notes.append(hint)
                log.info("%s", hint)
            self.session.close()
        if self._box is not None:
            self._box.report = self._report
        log.info("%s: %s.", self._report.model, self._report.headline())

    def _closed(self, sigma: float) -> str:
        if self._rules is None:
            return ""
        start, end = self._open
        if sigma > start:
            return "before start_percent"
        return "after end_percent" if sigma <= end else ""
