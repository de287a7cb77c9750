"""What each autocast policy means for the operands of one call: casts, dtype argument, or a refusal."""

EIGHT_BITS = ("f8e4m3fn", "f8e5m2")


class Operand:
    """A tensor argument. `kind` is `tensor`, `item` of a list, `optional`, or `ignored` (in a list of optional tensors)."""

    def __init__(self, path, dtype, is_home, kind):
        self.path, self.dtype, self.is_home, self.kind = path, dtype, is_home, kind


class Decision:
    """Casts as [path, from, to], what the dtype argument becomes, and the error that autocast raises."""

    def __init__(self, casts=(), dtype_argument=None, error=None):
        self.casts, self.dtype_argument, self.error = casts, dtype_argument, error


def decide(policy, operands, low, has_dtype, casts_f64=False):
    """What autocast does with a call in a region of `low`. `has_dtype`: the call gives a dtype argument itself."""

    def eligible(operand, also_f64=False):
        floats = ("f32", "f16", "bf16", *EIGHT_BITS, *(["f64"] if also_f64 else []))
        return operand.is_home and operand.kind != "ignored" and operand.dtype in floats

    def cast_all(to, also_f64=False):
        cast = [one for one in operands if eligible(one, also_f64) and one.dtype != to]
        return Decision([[one.path, one.dtype, to] for one in cast])

    first = operands[0] if operands else None
    match policy:
        case "lower_precision_fp":
            return cast_all(low, casts_f64)
        case "fp32":
            return cast_all("f32", casts_f64)
        case "fp32_set_opt_dtype":
            return Decision(dtype_argument="f32" if first and eligible(first) and not has_dtype else None)
        case "fp32_append_dtype":
            return Decision(dtype_argument="f32" if first and eligible(first) else first and first.dtype)
        case "promote":
            widest = low
            for one in operands:
                if not eligible(one) or one.kind == "optional":
                    continue
                if widest == "f32" or one.dtype == "f32":
                    widest = "f32"
                elif one.dtype != low:
                    return Decision(error="promote_mixed_low")
            return cast_all(widest)
        case "banned":
            return Decision(error="banned")
    return Decision()
