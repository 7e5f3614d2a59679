"""One small Llama twice: as it is trained, and as a server computes with it: fused, and cut over tensor-parallel ranks.

The serving half has vLLM's habits: layers by its names, parameters with a weight_loader, and a load_weights that a whole
checkpoint can be fed to. Names and shapes are those of lua/sluice/rules/llama.lua.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocab_size: int = 200
    hidden_size: int = 64
    intermediate_size: int = 80
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    tie_word_embeddings: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


def attend(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Tensor:
    heads = [x.unflatten(-1, (-1, head_dim)).transpose(1, 2) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


# ---- as it is trained ----


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.head_dim))


class Mlp(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(c.hidden_size), attention
        self.post_attention_layernorm, self.mlp = Norm(c.hidden_size), mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, embed: nn.Module, layers: Iterable[Layer], norm: Norm) -> None:
        super().__init__()
        self.embed_tokens, self.layers, self.norm = embed, nn.ModuleList(layers), norm

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class TrainedModel(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        layers = [Layer(c, Attention(c), Mlp(c)) for _ in range(c.num_hidden_layers)]
        self.model = Decoder(nn.Embedding(c.vocab_size, c.hidden_size), layers, Norm(c.hidden_size))
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.model(ids))


# ---- as it is served, by rank `rank` of `tp` ----


@dataclass(frozen=True)
class Tp:
    rank: int = 0
    size: int = 1

    def mine(self, whole: Tensor, dim: int = 0) -> Tensor:
        return whole.chunk(self.size, dim)[self.rank]

    def sum(self, x: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(x)
        return x


class Parallel(nn.Module):
    """One weight, with the attributes that the layer's own loader reads."""

    def __init__(self, tp: Tp, *shape: int, **attributes: int) -> None:
        super().__init__()
        self.tp, self.tp_size = tp, tp.size
        self.weight = nn.Parameter(torch.zeros(shape), requires_grad=False)
        for name, value in {**attributes, "weight_loader": self.weight_loader}.items():
            setattr(self.weight, name, value)

    def weight_loader(self, param: Tensor, loaded: Tensor, part: int = 0) -> None:
        raise TypeError(f"{type(self).__name__} loads no weight")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class ColumnParallelLinear(Parallel):
    def __init__(self, tp: Tp, size_in: int, size_out: int) -> None:
        super().__init__(tp, size_out // tp.size, size_in, output_dim=0)

    def weight_loader(self, param: Tensor, loaded: Tensor, part: int = 0) -> None:
        param.copy_(self.tp.mine(loaded))


class RowParallelLinear(Parallel):
    def __init__(self, tp: Tp, size_in: int, size_out: int) -> None:
        super().__init__(tp, size_out, size_in // tp.size, input_dim=1)

    def weight_loader(self, param: Tensor, loaded: Tensor, part: int = 0) -> None:
        param.copy_(self.tp.mine(loaded, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.tp.sum(F.linear(x, self.weight))


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several projections in one weight, this rank's rows of each one below the other."""

    def __init__(self, tp: Tp, size_in: int, sizes_out: list[int]) -> None:
        super().__init__(tp, size_in, sum(sizes_out))
        self.sizes = [size // tp.size for size in sizes_out]

    def weight_loader(self, param: Tensor, loaded: Tensor, part: int = 0) -> None:
        param.split(self.sizes)[part].copy_(self.tp.mine(loaded))


class VocabParallelEmbedding(Parallel):
    """Rows of a vocabulary that is padded with zeros to a multiple of 64."""

    def __init__(self, tp: Tp, vocab_size: int, hidden_size: int) -> None:
        self.vocab_size, self.rows = vocab_size, -(-vocab_size // 64) * 64 // tp.size
        super().__init__(tp, self.rows, hidden_size, output_dim=0)

    def weight_loader(self, param: Tensor, loaded: Tensor, part: int = 0) -> None:
        mine = loaded[self.tp.rank * self.rows : (self.tp.rank + 1) * self.rows]
        param.zero_()[: len(mine)].copy_(mine)

    def forward(self, ids: Tensor) -> Tensor:
        here = ids - self.tp.rank * self.rows
        inside = (here >= 0) & (here < self.rows)
        return self.tp.sum(F.embedding(here.clamp(0, self.rows - 1), self.weight) * inside.unsqueeze(-1))

    def logits(self, x: Tensor) -> Tensor:
        parts = [torch.zeros_like(F.linear(x, self.weight)) for _ in range(self.tp.size)]
        parts[self.tp.rank] = F.linear(x, self.weight)
        return self.tp.sum(torch.cat(parts, -1))[..., : self.vocab_size]


class ServedAttention(nn.Module):
    def __init__(self, c: Config, tp: Tp) -> None:
        super().__init__()
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.head_dim = c.head_dim
        self.qkv_proj = MergedColumnParallelLinear(tp, c.hidden_size, [q, kv, kv])
        self.o_proj = RowParallelLinear(tp, q, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(x).split(self.qkv_proj.sizes, -1)
        return self.o_proj(attend(q, k, v, self.head_dim))


class ServedMlp(nn.Module):
    def __init__(self, c: Config, tp: Tp) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(tp, c.hidden_size, [c.intermediate_size] * 2)
        self.down_proj = RowParallelLinear(tp, c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class ServedModel(nn.Module):
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self, c: Config, tp: Tp = Tp()) -> None:
        super().__init__()
        layers = [Layer(c, ServedAttention(c, tp), ServedMlp(c, tp)) for _ in range(c.num_hidden_layers)]
        self.model = Decoder(VocabParallelEmbedding(tp, c.vocab_size, c.hidden_size), layers, Norm(c.hidden_size))
        self.lm_head = VocabParallelEmbedding(tp, c.vocab_size, c.hidden_size)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head.logits(self.model(ids))

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Puts whole checkpoint tensors where this rank wants them."""
        parts = {part: (fused, at) for fused, names in self.packed_modules_mapping.items() for at, part in enumerate(names)}
        params = dict(self.named_parameters(remove_duplicate=False))
        for name, loaded in weights:
            path = name.split(".")
            fused, *part = parts.get(path[-2], (path[-2],))
            param = params[".".join([*path[:-2], fused, path[-1]])]
            loader = getattr(param, "weight_loader", None)
            loader(param, loaded, *part) if loader else param.copy_(loaded)
