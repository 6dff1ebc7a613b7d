"""The diagonal state space model S4D (Gu et al. 2022, section 3), chunk by chunk.

x_t = e^(dt A) x_(t-1) + (e^(dt A) - 1) / A u_t, y_t = 2 Re C x_t; that is a convolution with
K_l = 2 Re sum_n C_n (e^(dt A_n) - 1) / A_n e^(l dt A_n). The published code writes all powers down
and multiplies transforms of length 2 L; so a large number rounds away what came before it, and
every output depends a little on later tokens. Here the kernel acts inside a chunk of 64 tokens, as
a matrix, and the state carries the rest: three matrix products and a scan over chunks.

Tables are computed in float64, as an angle l dt w is large where l is. A complex state is kept as
pairs of real numbers.

Shape suffixes: B batch, H channels, S pairs of conjugate states, N tokens, P chunks, c a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.scan import diagonal_scan

CHUNK = 64


@dataclass(frozen=True)
class Diagonal:
    """The discretised system, complex128.

    Args:
        step_HS: dt A.
        input_HS: (e^(dt A) - 1) / A.
        output_HS: 2 C.
    """

    step_HS: Tensor
    input_HS: Tensor
    output_HS: Tensor

    def powers(self, exponents_L: Tensor) -> Tensor:
        """e^(l dt A), (H, L, S)."""
        return (self.step_HS.unsqueeze(1) * exponents_L.unsqueeze(-1)).exp()


def discretise(
    log_dt_H: Tensor, log_a_real_HS: Tensor, a_imag_HS: Tensor, c_HS2: Tensor
) -> Diagonal:
    """Zero-order hold of A = -exp(log_a_real) + i a_imag with B = 1."""
    a = torch.complex(-log_a_real_HS.double().exp(), a_imag_HS.double())
    step = a * log_dt_H.double().exp().unsqueeze(-1)
    c = torch.view_as_complex(c_HS2.double().contiguous())
    return Diagonal(step, (step.exp() - 1.0) / a, 2.0 * c)


def kernel(system: Diagonal, length: int) -> Tensor:
    """K (H, L) in float64; holds (H, L, S) complex numbers."""
    powers = system.powers(torch.arange(length, device=system.step_HS.device))
    return (powers * (system.output_HS * system.input_HS).unsqueeze(1)).real.sum(-1)


def diagonal_state_space(
    system: Diagonal, u_BNH: Tensor, state_BHS2: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs (B, N, H) and the last state (B, H, S, 2), real and imaginary parts.

    Args:
        system: of the channels.
        u_BNH: inputs in float32 or float64, any number.
        state_BHS2: before the first token; ``None`` is 0.
    """
    (batch, tokens, channels), pairs = u_BNH.shape, system.step_HS.shape[1]
    if state_BHS2 is None:
        state_BHS2 = u_BNH.new_zeros(batch, channels, pairs, 2)
    if tokens == 0:
        return u_BNH, state_BHS2
    if tokens == 1:
        y_BH, state_BHS2 = _step(system, u_BNH[:, 0], state_BHS2)
        return y_BH.unsqueeze(1), state_BHS2
    kernel_HcT, into_HcS, from_HSc = _tables(system, u_BNH.dtype)
    chunks = -(-tokens // CHUNK)
    u = F.pad(u_BNH, (0, 0, 0, chunks * CHUNK - tokens))
    u = u.reshape(batch, chunks, CHUNK, channels).permute(3, 1, 0, 2).flatten(1, 2)  # (H, P B, c)
    both = u @ torch.cat([kernel_HcT, into_HcS], 2)
    inside, added = both[..., :CHUNK], both[..., CHUNK:]
    added = added.reshape(channels, chunks, batch, 2 * pairs)
    before_HPBS = _before(system, added, state_BHS2)
    y = torch.baddbmm(inside, before_HPBS.flatten(1, 2), from_HSc)
    y = y.view(channels, chunks, batch, CHUNK).permute(2, 1, 3, 0).flatten(1, 2)[:, :tokens]

    rest = tokens - (chunks - 1) * CHUNK  # of the last chunk, whose padding has no part
    last = u.view(channels, chunks, batch, CHUNK)[:, -1, :, :rest] @ into_HcS[:, CHUNK - rest :]
    kept = _complex(before_HPBS[:, -1]) * (rest * system.step_HS).exp().to(_pair(u_BNH))[:, None]
    return y, torch.view_as_real((kept + _complex(last)).transpose(0, 1))


def _tables(system: Diagonal, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Of a chunk: inputs to outputs (H, c, c) and to the state (H, c, 2 S), state to outputs."""
    place = torch.arange(CHUNK, device=system.step_HS.device)
    powers_HcS = system.powers(place)
    k = kernel(system, CHUNK)
    behind = place - place[:, None]
    toeplitz = k[:, behind.clamp(min=0)].masked_fill(behind < 0, 0.0)
    into = torch.view_as_real(powers_HcS.flip(1) * system.input_HS.unsqueeze(1)).flatten(-2)
    out = system.powers(place + 1) * system.output_HS.unsqueeze(1)
    out = torch.stack([out.real, -out.imag], -1).flatten(-2).transpose(1, 2)
    return toeplitz.to(dtype), into.to(dtype), out.to(dtype)


def _before(system: Diagonal, added_HPBS: Tensor, state_BHS2: Tensor) -> Tensor:
    """The state before each chunk, from what each of them adds.

    Seen in a frame that turns with the state, it decays by real numbers.
    """
    chunks = added_HPBS.shape[1]
    turn = torch.arange(chunks + 1, device=added_HPBS.device) * CHUNK
    angle = turn[:, None] * system.step_HS.imag.unsqueeze(1)
    frame = torch.polar(torch.ones_like(angle), angle).to(_pair(added_HPBS)).unsqueeze(2)
    still = torch.view_as_real(_complex(added_HPBS) * frame[:, 1:].conj_physical())
    decay = (CHUNK * system.step_HS.real).to(still.dtype)[:, None, None, :, None]
    first = state_BHS2.transpose(0, 1).to(still.dtype)
    after, _ = diagonal_scan(decay, still, first)
    before = torch.cat([first.unsqueeze(1), after[:, :-1]], 1)
    return torch.view_as_real(torch.view_as_complex(before) * frame[:, :-1]).flatten(-2)


def _step(system: Diagonal, u_BH: Tensor, state_BHS2: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B, H) and state of a single token."""
    state = system.step_HS.exp() * torch.view_as_complex(state_BHS2.double())
    state = state + system.input_HS * u_BH.double().unsqueeze(-1)
    y = (system.output_HS * state).real.sum(-1)
    return y.to(u_BH.dtype), torch.view_as_real(state).to(u_BH.dtype)


def _pair(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.dtype == torch.float64 else torch.complex64


def _complex(x: Tensor) -> Tensor:
    """Interleaved (..., 2 S) as complex (..., S)."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).contiguous())
